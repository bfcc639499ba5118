"""Files that only people write, given to `raytrain run` against an address where nobody answers."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.case import Case, Refused

NOBODY = "http://127.0.0.1:1"
_SPEC = "framework: python\ntrain_loop_per_worker: devtools.steps:counting_loop\n"


def _lines(*more: str) -> bytes:
    return (_SPEC + "".join(f"{line}\n" for line in more)).encode()


def _bomb(levels: int) -> list[str]:
    first = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    rest = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return [*first, *rest, f"limits: *a{levels - 1}"]


#: Name → file name, content, and a word that the refusal names.
FILES: dict[str, tuple[str, bytes, str]] = {
    "not UTF-8": ("x.yaml", b"\xff\xfe\xfa: 1", "spec file"),
    "UTF-16": ("x.yaml", _SPEC.encode("utf-16"), "spec file"),
    "latin-1": ("x.yaml", _lines() + b"seed: \xe9", "spec file"),
    "JSON that is not UTF-8": ("x.json", b'{"a": "\xff"}', "spec file"),
    "an impossible date": ("x.yaml", _lines("seed: 2026-13-45"), "spec file"),
    "an impossible time": ("x.yaml", _lines("seed: 2026-01-01 25:61:61"), "spec file"),
    "a date": ("x.yaml", _lines("seed: 2026-01-01"), "seed"),
    "a number as a key": ("x.yaml", _lines("5: 1"), "5"),
    "null as a key": ("x.yaml", _lines("null: 1"), "None"),
    "a list as a key": ("x.yaml", _lines("? [a]\n: 1"), "spec file"),
    "a number as an inner key": ("x.yaml", _lines("limits: {5: 1}"), "limits"),
    "kind as a list": ("x.yaml", _lines("kind: [train]"), "kind"),
    "kind as a mapping": ("x.yaml", _lines("kind: {a: b}"), "kind"),
    "5,000 digits": ("x.yaml", _lines("seed: " + "9" * 5000), "spec file"),
    "5,000 digits in JSON": ("x.json", b'{"seed": ' + b"9" * 5000 + b"}", "spec file"),
    "5,000 hexadecimal digits": ("x.yaml", _lines("seed: 0x" + "f" * 5000), "seed"),
    "deep lists": ("x.yaml", _lines("limits: " + "[" * 5000 + "]" * 5000), "spec file"),
    "deep mappings": ("x.yaml", _lines("limits: " + "{a: " * 5000 + "1" + "}" * 5000), "spec file"),
    "deep by indentation": ("x.yaml", _lines("limits:", *(f"{' ' * n}a:" for n in range(1, 300))), "spec file"),
    "deep JSON": ("x.json", b'{"limits": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "spec file"),
    "deep JSON mappings": ("x.json", b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "spec file"),
    "a cyclic alias": ("x.yaml", _lines("limits: &a [*a]"), "spec file"),
    "a cyclic mapping": ("x.yaml", _lines("limits: &a {b: *a}"), "spec file"),
    "an alias bomb": ("x.yaml", _lines(*_bomb(9)), "spec file"),
    "an alias bomb of keys": ("x.yaml", _lines(*_bomb(8), "? *a7\n: 1"), "spec file"),
    "a merge bomb": (
        "x.yaml",
        _lines("a: &a {b: 1}", *(f"c{n}: {{<<: [{', '.join(['*a'] * 2000)}]}}" for n in range(40))),
        "",
    ),
    "an unknown alias": ("x.yaml", _lines("limits: *nobody"), "spec file"),
    "a tag of Python's": ("x.yaml", _lines("seed: !!python/object/apply:os.getpid []"), "spec file"),
    "a tag that does not fit": ("x.yaml", _lines("seed: !!int x"), "spec file"),
    "an empty int": ("x.yaml", _lines("seed: !!int ''"), "spec file"),
    "a flag that is none": ("x.yaml", _lines("world_check: !!bool x"), "spec file"),
    "a timestamp that is none": ("x.yaml", _lines("seed: !!timestamp x"), "spec file"),
    "binary": ("x.yaml", _lines("seed: !!binary aGVsbG8="), "seed"),
    "a set": ("x.yaml", _lines("seed: !!set {a, b}"), "seed"),
    "pairs": ("x.yaml", _lines("limits: !!pairs [a: 1, a: 2]"), "limits"),
    "a key twice": ("x.yaml", _lines("seed: 1", "seed: 2"), "spec file"),
    "a key twice in JSON": ("x.json", b'{"seed": 1, "seed": 2}', "spec file"),
    "NaN in JSON": ("x.json", b'{"seed": NaN}', "spec file"),
    "infinity in JSON": ("x.json", b'{"seed": -Infinity}', "spec file"),
    "infinity": ("x.yaml", _lines("limits: {timeout_s: .inf}"), "timeout_s"),
    "not a number": ("x.yaml", _lines("train_loop_config: {lr: .nan}"), "train_loop_config.lr"),
    "a tab": ("x.yaml", b"a:\n\tb: 1", "spec file"),
    "nothing": ("x.yaml", b"", "spec file"),
    "a comment": ("x.yaml", b"# nothing\n", "spec file"),
    "NUL": ("x.yaml", b"a: \0", "spec file"),
    "two documents": ("x.yaml", _lines("---", "a: 1"), "spec file"),
    "a list": ("x.yaml", b"- 1", "spec file"),
    "text": ("x.yaml", b"hello", "spec file"),
    "half a JSON": ("x.json", b'{"a": ', "spec file"),
    "a large file": ("x.yaml", b"a: " + b"x" * 3_000_000, "spec file"),
    "a million of short values": ("x.yaml", b"a: [" + b"1," * 400_000 + b"]", "spec file"),
    "an unknown field": ("x.yaml", _lines("nope: 1"), "nope"),
    "a number where text is": ("x.yaml", _lines("run_config: {name: 5}"), "name"),
    "a path as name": ("x.yaml", _lines("run_config: {name: ../x}"), "name"),
    "escape codes as name": ("x.yaml", _lines('run_config: {name: "a\\e[31m"}'), "name"),
    "markup in a field": ("x.yaml", _lines('"[/b]": 1'), "[/b]"),
    "a function module that is not UTF-8": (
        "x.yaml",
        b"framework: python\ntrain_loop_per_worker: module_latin:loop\n",
        "loop",
    ),
    "a function module with NUL": ("x.yaml", b"framework: python\ntrain_loop_per_worker: module_nul:loop\n", "loop"),
    "a function module that is deep": ("x.yaml", b"framework: python\ntrain_loop_per_worker: module_deep:loop\n", "loop"),
    "a function module of an unknown coding": (
        "x.yaml",
        b"framework: python\ntrain_loop_per_worker: module_coding:loop\n",
        "loop",
    ),
}
_MODULES = {
    "module_latin.py": b"# \xe9\ndef loop(config): ...\n",
    "module_nul.py": b"def loop(config): ...\n\0",
    "module_deep.py": b"x = " + b"(" * 5000 + b")" * 5000,
    "module_coding.py": b"# -*- coding: nope -*-\ndef loop(config): ...\n",
}


def file_cases() -> Iterator[Case]:
    for name, (file, content, word) in FILES.items():
        yield Case("cli", name, functools.partial(_run_file, file, content), True, (word,) if word else ())
    fine = Case(
        "cli", "a file that is right", functools.partial(_run_file, "x.yaml", _lines()), False, reason="it is right"
    )
    yield fine
    number = _lines("train_loop_config: {lr: 1e-3}")
    yield Case("cli", "1e-3", functools.partial(_run_file, "x.yaml", number), False, reason="a number, as in YAML 1.2")


def _run_file(name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for module, source in _MODULES.items():
            Path(folder, module).write_bytes(source)
        Path(folder, name).write_bytes(content)
        sys.path.append(folder)
        try:
            storage = os.path.join(folder, "runs")
            cli("run", os.path.join(folder, name), "--storage", storage, "--address", NOBODY)
        finally:
            sys.path.remove(folder)


def cli(*arguments: str) -> None:
    """`raytrain` in this process. Raises Refused with its sentence where it exits with a code of ours."""
    from plugin_core import cli as command

    before, argv = [*sys.path], sys.argv
    said = io.StringIO()
    sys.argv = ["raytrain", *arguments]
    command.err.file = said
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            command.main()
    except SystemExit as exc:
        text = said.getvalue().strip()
        if exc.code and "ClusterUnreachableError" not in text:
            raise Refused(text.partition(": ")[2] or f"exit {exc.code}") from None
    finally:
        sys.argv, sys.path[:] = argv, before
