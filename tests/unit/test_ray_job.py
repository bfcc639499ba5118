"""A Ray job without Ray: its spec, what its process saves and returns, and the guard of a command."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from plugin_core import RayJobResult, RayJobSpec, RunConfig, RunRef
from plugin_core.driver.ray_job.process import Ended, as_json, call, run_command
from plugin_core.errors import FencedError, SpecError, StorageError, UserCodeError
from plugin_core.loops import step
from plugin_core.runs.directory import RunDir
from plugin_core.runs.saved_state import STATE_BYTES, Start
from plugin_core.specs.ray_job import call_arguments
from plugin_core.specs.results import REFERENCE_BYTES, TrainResult


def prepare(day: str, parts: int = 2) -> dict[str, Any]:
    return {"day": day, "parts": parts}


@pytest.mark.parametrize(("fields", "sentence"), [
    ({}, "function: got neither of function and command"),
    ({"function": "a:b", "command": "ls"}, "function: got both of function and command"),
    ({"command": "ls", "arguments": {"a": 1}}, "arguments: got them with a command"),
    ({"command": []}, "command: got []; expected a program and its arguments"),
    ({"command": [" "]}, "command: got [' ']; expected a program"),
    ({"command": ["a\0"]}, "expected text without NUL"),
    ({"function": "a:b", "resources": {"GPU": 1}}, "resources: got 'GPU'; expected it in num_gpus"),
    ({"function": prepare}, "arguments: got none (missing a required argument: 'day'); expected day, parts"),
    ({"function": prepare, "arguments": {"dya": "x"}}, "arguments: got dya (missing a required argument: 'day')"),
])  # fmt: skip
def test_a_wrong_job_is_refused_in_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        RayJobSpec(**fields)
    assert sentence in refused.value.message


def test_a_job_needs_its_process_and_room_for_its_tasks() -> None:
    assert RayJobSpec(function="a:b").need() == {"CPU": 1.0, "GPU": 0.0}
    spec = RayJobSpec(command="x", num_cpus=2, num_gpus=1, resources={"tpu": 4}, task_resources={"CPU": 3, "tpu": 1})
    assert spec.need() == {"CPU": 5.0, "GPU": 1.0, "tpu": 5.0}
    assert RayJobSpec(function="a:b", task_resources={}).need() == {"CPU": 0.0, "GPU": 0.0}


class TestCallArguments:
    def test_a_call_becomes_arguments_by_name(self) -> None:
        assert call_arguments(prepare, ["mon"], {"parts": 3}) == {"day": "mon", "parts": 3}
        assert call_arguments(lambda **more: more, [], {"a": 1}) == {"a": 1}

    def test_a_result_of_a_step_becomes_its_json(self) -> None:
        result = TrainResult(run=RunRef(uri="/r", name="r"))
        assert call_arguments(prepare, [result])["day"]["run"]["uri"] == "/r"

    def test_a_call_that_the_function_does_not_take_is_refused(self) -> None:
        with pytest.raises(SpecError, match="too many positional arguments; expected day, parts"):
            call_arguments(prepare, ["mon", 2, 3])
        with pytest.raises(SpecError, match="the parameter 'args', which has no name"):
            call_arguments(lambda *args: args, [1])


@pytest.fixture
def run_uri(tmp_path: Path) -> str:
    spec = RayJobSpec(command="x", run_config=RunConfig(name="job", storage_path=str(tmp_path)))
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    assert rundir.claim(1, "test", "test") is not None
    return rundir.uri


class TestSavedState:
    def test_each_start_reads_what_the_one_before_saved(self, run_uri: str) -> None:
        first, second = Start(run_uri, 1, 1), Start(run_uri, 1, 2)
        assert first.load() is None
        first.save({"done": ["a"]})
        first.save({"done": ["a", "b"]})
        second.begin()
        assert second.load() == {"done": ["a", "b"]}
        second.save([1, None, "é"])
        assert Start(run_uri, 2, 1).load() == [1, None, "é"]

    def test_a_process_believed_dead_cannot_save_once_the_next_start_began(self, run_uri: str) -> None:
        zombie, second = Start(run_uri, 1, 1), Start(run_uri, 1, 2)
        zombie.save("old")
        second.begin()
        with pytest.raises(FencedError, match="was started again"):
            zombie.save("from a zombie")
        assert second.load() == "old"

    def test_a_write_of_a_zombie_that_was_checked_before_harms_nobody(self, run_uri: str) -> None:
        zombie, second = Start(run_uri, 1, 1), Start(run_uri, 1, 2)
        second.begin()
        second.save("new")
        zombie._file(1, "json").write(json.dumps({"state": "late"}).encode())
        assert second.load() == Start(run_uri, 2, 1).load() == "new"

    def test_an_attempt_that_was_replaced_cannot_save(self, run_uri: str) -> None:
        assert RunDir.at(run_uri).claim(2, "test", "test") is not None
        with pytest.raises(FencedError, match="a later attempt owns"):
            Start(run_uri, 1, 1).save(1)

    @pytest.mark.parametrize(("state", "sentence"), [
        ({"a": {1, 2}}, "step.save: state.a: got"),
        (float("nan"), "step.save: state: got nan"),
        ("x" * STATE_BYTES, "expected at most 1,048,576: write the data to step.output()"),
    ])  # fmt: skip
    def test_a_state_that_json_changes_or_that_is_too_large_is_refused(
        self, run_uri: str, state: Any, sentence: str
    ) -> None:
        start = Start(run_uri, 1, 1)
        start.save("before")
        with pytest.raises(UserCodeError) as refused:
            start.save(state)
        assert sentence in refused.value.message
        assert start.load() == "before"

    def test_a_damaged_state_is_told_not_skipped(self, run_uri: str) -> None:
        start = Start(run_uri, 1, 1)
        start._file(1, "json").write(b'{"sta')
        with pytest.raises(StorageError, match=r"000001-000001\.json is damaged"):
            start.load()

    def test_outside_its_process_the_step_says_where_to_call_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(step.VARIABLE, raising=False)
        for function in (step.load, step.output, lambda: step.save(1)):
            with pytest.raises(RuntimeError, match="this is not the process of a step"):
                function()


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(step.VARIABLE, "")  # so that what the process sets is undone


@pytest.mark.usefixtures("own_environment")
class TestFunction:
    def test_it_saves_and_returns(self, run_uri: str) -> None:
        def count() -> int:
            seen = (step.load() or 0) + 1
            step.save(seen)
            assert step.output() == f"{run_uri}/output"
            return seen

        assert [call(Start(run_uri, 1, start), count, {}) for start in (1, 2)] == ["1", "2"]

    def test_sys_exit_is_a_return_or_an_error(self, run_uri: str) -> None:
        start = Start(run_uri, 1, 1)
        assert call(start, sys.exit, {}) == "null"
        with pytest.raises(UserCodeError, match=r"called sys\.exit\(3\)"):
            call(start, lambda: sys.exit(3), {})


@pytest.mark.parametrize(("value", "text"), [
    (None, "null"),
    ({"rows": np.int64(3), "loss": np.float32(0.5), "ids": np.arange(2)}, '{"rows": 3, "loss": 0.5, "ids": [0, 1]}'),
    ((1, "é"), '[1, "\\u00e9"]'),
])  # fmt: skip
def test_a_value_is_returned_as_json(value: Any, text: str) -> None:
    assert as_json(value) == text


@pytest.mark.parametrize("value", [object(), float("nan"), {"a": lambda: 1}, "x" * (1 << 20), [b"\xff"]])
def test_a_value_that_is_not_json_is_refused_and_not_cut(value: Any) -> None:
    with pytest.raises(UserCodeError, match=r"expected plain JSON data: write anything else to step\.output\(\)"):
        as_json(value)


def test_a_large_value_is_read_from_storage(tmp_path: Path) -> None:
    (tmp_path / ".step").mkdir()
    (tmp_path / ".step" / "value.json").write_text('{"a": 1}')
    run = RunRef(uri=str(tmp_path), name="r")
    assert RayJobResult(run=run, value=[1]).load() == [1]
    large = RayJobResult(run=run, value_uri=f"{tmp_path}/.step/value.json")
    assert large.load() == {"a": 1}
    assert len(large.reference().model_dump_json()) < REFERENCE_BYTES
    (tmp_path / ".step" / "value.json").unlink()
    with pytest.raises(StorageError, match="is missing"):
        large.load()


class TestCommand:
    def test_it_runs_with_the_python_and_the_variables_that_it_is_given(
        self, run_uri: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        code = "import os, sys; print(os.environ['X'], sys.prefix); print('err', file=sys.stderr); sys.exit(3)"
        ended = run_command(Start(run_uri, 1, 1), ["python", "-c", code], {"X": "7"})
        assert (ended.code, ended.signal) == (3, "")
        assert f"7 {sys.prefix}" in ended.tail
        assert "err" in capfd.readouterr().out

    def test_text_is_a_line_for_the_shell_and_a_list_is_not(self, run_uri: str) -> None:
        start = Start(run_uri, 1, 1)
        assert run_command(start, "echo $X | tr a b", {"X": "aa"}).tail == "bb\n"
        assert run_command(start, ["echo", "$X; echo y"], {"X": "aa"}).tail == "$X; echo y\n"

    def test_it_saves_what_a_later_start_finds(self, run_uri: str) -> None:
        code = "from plugin_core.loops import step; seen = step.load(); print(seen); step.save((seen or 0) + 1)"
        said = [run_command(Start(run_uri, 1, n), ["python", "-c", code], {}).tail for n in (1, 2)]
        assert said == ["None\n", "1\n"]

    def test_a_program_that_is_not_there_is_named(self, run_uri: str) -> None:
        ended = run_command(Start(run_uri, 1, 1), ["no-such-program"], {})
        assert ended.code == 127
        assert "command: no-such-program cannot be started: No such file or directory" in ended.tail

    @pytest.mark.parametrize("command", ["kill -9 $$", "sh -c 'kill -9 $$'"])
    def test_a_signal_is_told_by_its_name(self, run_uri: str, command: str) -> None:
        assert run_command(Start(run_uri, 1, 1), command, {}).signal == "SIGKILL"
        assert Ended(1).signal == Ended(0).signal == Ended(128).signal == ""

    def test_its_last_lines_alone_are_kept(self, run_uri: str) -> None:
        ended = run_command(Start(run_uri, 1, 1), "seq 100000", {})
        assert ended.tail.splitlines() == [str(number) for number in range(99971, 100001)]


#: A command whose processes leave their parents and sessions.
TREE = """
import os, subprocess, sys, time
from pathlib import Path
for number in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(sys.argv[1], str(os.getpid())).touch()
            time.sleep(1000)
        os._exit(0)
Path(sys.argv[1], str(os.getpid())).touch()
time.sleep(float(sys.argv[2]))
"""


class Guarded:
    """A command below a guard. `status`: what the guard says at the end; "" if it was killed."""

    def __init__(self, *command: str):
        reading, writing = os.pipe()
        started = [sys.executable, "-m", "plugin_core.driver.ray_job.guard", str(writing), *command]
        self.starter = subprocess.Popen(started, stdin=subprocess.PIPE, pass_fds=[writing])
        os.close(writing)
        self._reading = reading

    def status(self) -> str:
        with open(self._reading) as status:
            return status.read()

    def close(self) -> None:
        self.starter.communicate()


def guarded(folder: Path, seconds: float) -> Guarded:
    folder.mkdir()
    return Guarded(sys.executable, "-c", TREE, str(folder), str(seconds))


def alive(folder: Path) -> list[int]:
    """The processes of a folder that live; nobody may wait for those that init adopted and that are over."""
    return [pid for each in folder.iterdir() if _lives(pid := int(each.name))]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestGuard:
    def test_nothing_that_the_command_started_outlives_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "pids"
        guard = guarded(folder, 1.0)
        assert guard.status() == "0"
        assert len(list(folder.iterdir())) == 3
        assert alive(folder) == []
        guard.close()

    def test_nothing_outlives_who_started_it_though_its_children_are_killed_with_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "pids"
        guard = guarded(folder, 1000)
        until(lambda: len(list(folder.iterdir())) == 3)
        assert psutil.Process(guard.starter.pid).status() == psutil.STATUS_ZOMBIE, "the guard is nobody's child"
        guard.close()
        assert guard.status() in ("", "137")
        until(lambda: alive(folder) == [])

    def test_a_killed_guard_takes_the_command_with_it(self, tmp_path: Path) -> None:
        folder = tmp_path / "pids"
        folder.mkdir()
        code = f"import os, time; open(os.path.join({str(folder)!r}, str(os.getpid())), 'w'); time.sleep(1000)"
        guard = Guarded(sys.executable, "-c", code)
        until(lambda: list(folder.iterdir()))
        (pid,) = alive(folder)
        psutil.Process(pid).parent().kill()  # type: ignore[union-attr]
        assert guard.status() == ""
        until(lambda: alive(folder) == [])
        guard.close()
