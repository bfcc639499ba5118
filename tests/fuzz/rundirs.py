"""Run directories that are damaged or odd, under every command that reads one."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.files import NOBODY, cli

COMMANDS: dict[str, tuple[str, ...]] = {
    "ls": ("ls", "{storage}"),
    "top": ("top", "{storage}", "--once"),
    "status": ("status", "{run}"),
    "checkpoints": ("checkpoints", "{run}"),
    "result": ("result", "{run}"),
    "history": ("history", "{run}"),
    "logs": ("logs", "{run}", "--address", NOBODY),
    "prune": ("prune", "{storage}", "--older-than-days", "0"),
    "track": ("track", "{run}"),
    "cancel": ("cancel", "{run}", "--address", NOBODY),
}
SPEC, RECEIPT, END = ".step/spec.json", ".step/attempts/001.json", ".step/attempts/001.end.json"
INTENT, BEAT, RESULT = ".step/intent.json", ".step/attempts/001.beat.json", ".step/result.json"
LINKS = ".step/attempts/001.links.json"
JOURNAL = ".step/journal/001-0000001.jsonl"
#: What each command cannot do without: there, damage has to be told.
NEEDS: dict[str, tuple[str, ...]] = {
    "status": (SPEC, RECEIPT, END, INTENT, BEAT, RESULT),
    "checkpoints": (SPEC, RESULT),
    "prune": (RESULT,),
    "result": (SPEC, RESULT),
    "history": (SPEC,),
    "logs": (RECEIPT,),
    "track": (SPEC, RESULT),
    "cancel": (SPEC, RESULT),
}
NOT_NEEDED = "the command does without this file, or without what is damaged in it"
UNKNOWN = "fields that a later version added are passed over"


def _whole(data: Any) -> bytes:
    return json.dumps(data).encode()


#: Name → from the file's JSON, what stands there instead; None: a folder.
DAMAGE: dict[str, Callable[[Any], bytes | None]] = {
    "empty": lambda data: b"",
    "torn": lambda data: _whole(data)[: len(_whole(data)) // 2],
    "null": lambda data: b"null",
    "a list": lambda data: b"[]",
    "a number": lambda data: b"5",
    "text": lambda data: b'"x"',
    "not UTF-8": lambda data: b'{"a": "\xff\xfe"}',
    "zeros": lambda data: b"\0" * 512,
    "deep": lambda data: b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "5,000 digits": lambda data: b'{"attempt": ' + b"9" * 5000 + b"}",
    "half a character": lambda data: b'{"a": "\\ud800"}',
    "a folder": lambda data: None,
    "twice": lambda data: _whole(data) * 2,
}
_WRONG_TYPES: tuple[Any, ...] = (5, "x", [], {}, None, True, -1, 1e300, "\ud800", "../../outside", {"a": [1]})


def rundir_cases() -> Iterator[Case]:
    files = _files()
    for file, data in files.items():
        for name, damage in DAMAGE.items():
            for command in COMMANDS:
                yield _case(command, file, name, damage(data), _wrong(command, file))
        for command in COMMANDS:
            more = _whole({**data, "later": {"a": 1}})
            # this run's tracker and its cluster are gone, and it kept no log
            wrong = None if command in ("track", "logs") else False
            yield _case(command, file, "an unknown field", more, wrong, UNKNOWN)
        for field in data:
            for command in COMMANDS:
                without = {name: value for name, value in data.items() if name != field}
                yield _case(command, file, f"without {field}", _whole(without), None)
                draw = random.Random(f"{file} {field} {command}")
                for value in draw.sample(_WRONG_TYPES, 2):
                    wrong = None if type(value) is type(data[field]) else _wrong(command, file)
                    if file in (SPEC, RESULT) and field not in ("schema", "kind", "spec", "payload", "run", "metrics"):
                        wrong = None
                    if value is None or file == JOURNAL:
                        wrong = None
                    yield _case(command, file, f"{field}: {value!r:.20}", _whole({**data, field: value}), wrong)
    for command in COMMANDS:
        for name, change in ODD.items():
            call = functools.partial(_either, functools.partial(_try, command, change))  # some of it is damage
            yield Case(f"raytrain {command}", name, call, False, reason=NOT_NEEDED, warm=_warm(command))


def _wrong(command: str, file: str) -> bool | None:
    return True if file in NEEDS.get(command, ()) else None


def _case(command: str, file: str, name: str, content: bytes | None, wrong: bool | None, reason: str = NOT_NEEDED) -> Case:
    """`wrong` None: either is right, as long as we say it in one sentence."""
    call = functools.partial(_try, command, functools.partial(_replace, file, content))
    if wrong is None:
        call = functools.partial(_either, call)
    named = (
        "damaged",
        "cannot be read",
        "expected a run directory",
        "result",
        "schema",
        "kind",
        "spec",
        "run",
        "directory",
    )
    return Case(f"raytrain {command}", f"{file}: {name}", call, bool(wrong), named, reason, _warm(command))


def _warm(command: str) -> Callable[[], None]:
    return functools.partial(_try, command, lambda run: None)


def _either(call: Callable[[], None]) -> None:
    from tests.fuzz.case import Refused

    try:
        call()
    except Refused:
        return


def _try(command: str, change: Callable[[Path], None]) -> None:
    folder = tempfile.mkdtemp()
    try:
        run = Path(folder, "runs", "run")
        for file, data in _files().items():
            place = run / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(_whole(data) + b"\n")
        checkpoint = run / "checkpoint_a001_000001"
        checkpoint.mkdir()
        (checkpoint / "model.pt").write_bytes(b"x")
        change(run)
        places = {"{run}": str(run), "{storage}": str(run.parent)}
        cli(*(places.get(argument, argument) for argument in COMMANDS[command]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _replace(file: str, content: bytes | None, run: Path) -> None:
    place = run / file
    place.unlink()
    if content is None:
        place.mkdir()
    else:
        place.write_bytes(content)


def _odd_names(run: Path) -> None:
    for name in ("x.json", "000.json", "99999999999999999999.json", "-1.json", "001.json.tmp", "é.json"):
        (run / ".step/attempts" / name).write_text("{}")
    for name in ("x", "001-x.jsonl", "é", "001-0000001.jsonl.tmp"):
        (run / ".step/journal" / name).write_text("{}")


def _dangling(run: Path) -> None:
    (run / RESULT).unlink()
    os.symlink("/nowhere/at/all", run / RESULT)


def _looped(run: Path) -> None:
    (run / SPEC).unlink()
    os.symlink("spec.json", run / SPEC)


def _markup(run: Path) -> None:
    data = {**_files()[END], "message": "[/b] \x1b[31m [link=x]", "outcome": "user_error"}
    (run / END).write_bytes(_whole(data))


def _odd_checkpoints(run: Path) -> None:
    (run / "checkpoint_a001_000002").write_text("a file")
    (run / "checkpoint_a001_000003").mkdir()
    (run / "checkpoint_a001_000004" / ".manifest").mkdir(parents=True)
    for number, text in enumerate(("{", "[]", '{"files": 5}', '{"files": {"a": 5}}', '{"files": {"a": ["x", 1]}}')):
        (run / f"checkpoint_a001_000004/.manifest/{number:05}.json").write_text(text)


def _journal(*lines: bytes) -> Callable[[Path], None]:
    return lambda run: (run / JOURNAL).write_bytes(b"\n".join(lines))


def _odd_journal(run: Path) -> None:
    good = _files()[JOURNAL]
    odd: list[Any] = [5, None, [], {}, {"report": "x"}, {"report": 1}, {"report": 2, "metrics": 5}, {"phase": 5}]
    odd += [{**good, "checkpoint": name} for name in ("../../x", "", "/x", 5, "\ud800")]
    odd += [{**good, "metrics": value} for value in (None, [], {"a": "\x1b[31m"}, {"a": {"b": [1]}})]
    odd += [{**good, "time": value} for value in ("x", None, -1e300)] + [{**good, "report": 10**30}]
    (run / JOURNAL).write_bytes(b"\n".join(json.dumps(line).encode() for line in odd) + b"\n\xff\xfe\n{\n" + b"[" * 5000)


ODD: dict[str, Callable[[Path], None]] = {
    "odd names": _odd_names,
    "odd lines of the journal": _odd_journal,
    "odd checkpoints": _odd_checkpoints,
    "markup in a message": _markup,
    "an empty journal": _journal(b""),
    "a journal of zeros": _journal(b"\0" * 4096),
}


@functools.cache
def _files() -> dict[str, dict[str, Any]]:
    """The files of a run that succeeded, as they are written; a test sees to it that they are read as such."""
    run = {"uri": "/runs/run", "name": "run", "attempt": 1}
    loop = "devtools.steps:counting_loop"
    spec = {"kind": "train", "framework": "python", "train_loop_per_worker": loop, "run_config": {"name": "run"}}
    job = {"submission_id": "rt-1-g1-a1-0", "nonce": "0", "address": NOBODY, "incarnation": "s", "generation": 1}
    record = {"schema": 1, "kind": "train", "code": "0", "python": "3.11.1", "payload": False, "sources": False}
    return {
        SPEC: {**record, "spec": spec},
        RECEIPT: {"attempt": 1, **job, "cluster": NOBODY},
        END: {"outcome": "succeeded", "message": "", "details": "", "elapsed_s": 1.0},
        INTENT: {"cancel_through": 0, "whole_run": "", "whole_through": 0},
        BEAT: {"counter": 1, "phase": "training", "elapsed_s": 1.0},
        LINKS: {"mlflow": "http://127.0.0.1:1"},
        RESULT: {"schema_version": 1, "run": run, "metrics": {"loss": 1.0}, "kind": "train", "reports": 1},
        JOURNAL: {
            **{"attempt": 1, "time": 1.0, "report": 1, "index": 1, "metrics": {"loss": 1.0}},
            "checkpoint": "checkpoint_a001_000001",
        },
    }


# ---- the embedded head's state


def _head(command: str, content: bytes) -> None:
    folder = tempfile.mkdtemp()
    before = os.environ.get("RAYTRAIN_HOME")
    os.environ["RAYTRAIN_HOME"] = folder
    try:
        from plugin_core.clusters import local_head

        state = local_head.state_dir() / "state.json"
        state.touch(mode=0o600)
        state.write_bytes(content)
        cli("cluster", command)
    finally:
        os.environ.pop("RAYTRAIN_HOME")
        if before is not None:
            os.environ["RAYTRAIN_HOME"] = before
        shutil.rmtree(folder, ignore_errors=True)


def head_cases() -> Iterator[Case]:
    """A damaged state of the embedded head; no process has the id in it."""
    state = {"address": NOBODY, "token": "t", "mark": "none", "keeper_pid": 2**22 - 1, "keeper_started": 1.0}
    state |= {"temp_dir": "/nowhere", "num_cpus": 4, "idle_timeout_s": 1.0}
    for command in ("status", "stop", "url", "token"):
        for name, damage in DAMAGE.items():
            if (content := damage(state)) is not None:
                yield Case(
                    f"raytrain cluster {command}", name, functools.partial(_head, command, content), True, ("damaged",)
                )
        for field in state:
            content = _whole({**state, field: [1]})
            yield Case(
                f"raytrain cluster {command}",
                f"{field}: a list",
                functools.partial(_head, command, content),
                True,
                (field,),
            )
        whole = functools.partial(_head, command, _whole(state))
        yield Case(
            f"raytrain cluster {command}", "as it was written", whole, False, reason="the state of a head that is gone"
        )
