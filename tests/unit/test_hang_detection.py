"""How long a training may be quiet, and which rank the stacks of all ranks point at."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugin_core.driver.train import hang_callback
from plugin_core.driver.train.hang_callback import HangCallback
from plugin_core.driver.train.rhythm import Rhythm
from plugin_core.driver.train.stacks import odd_ranks, where
from plugin_core.errors import InfrastructureError
from plugin_core.loops.progress import progress
from plugin_core.runs.directory import RunDir
from plugin_core.specs.hang import HangDetection

CONFIG = HangDetection(min_s=60.0, start_s=1000.0, factor=30.0)
STACK = """state: sleeping
Process 7: ray::RayTrainWorker
Python v3.11.7

Thread 7 (idle): "MainThread"
    main_loop (ray/_private/worker.py:1037)
    <module> (ray/_private/workers/default_worker.py:330)
Thread 8 (idle): "Thread-3"
{frames}
    wrap.<locals>.train_loop_per_worker (/site/plugin_core/driver/train/worker.py:75)
    run (threading.py:982)
"""


def stack(*frames: str) -> str:
    return STACK.format(frames="\n".join(f"    {frame}" for frame in frames))


ASLEEP = stack("rest (/home/me/train.py:12)", "loop (/home/me/train.py:30)")
READING = stack("wait (/usr/lib/python3.11/threading.py:9)", "loop (/home/me/train.py:30)")
REDUCING = stack(
    "all_reduce (torch/distributed/distributed_c10d.py:2810)", "step (/home/me/train.py:28)", "loop (/home/me/train.py:31)"
)
BARRIER = stack("wait (threading.py:1)", "barrier (torch/distributed/distributed_c10d.py:4)", "loop (/home/me/train.py:31)")
REPORTING = stack(
    "get (ray/_private/worker.py:3009)",
    "_sync_checkpoint_dir_name_across_ranks (ray/train/v2/_internal/execution/context.py:300)",
    "report (ray/train/v2/api/train_fn_utils.py:1)",
)


def test_the_bound_is_learned_from_the_reports_of_a_worker_group() -> None:
    rhythm = Rhythm(CONFIG, 0.0)
    assert (rhythm.bound_s, rhythm.learned) == (1000.0, "before the first two reports")
    rhythm.report(500.0)  # compiled first
    assert rhythm.bound_s == 1000.0
    for now in range(510, 600, 10):
        rhythm.report(float(now))
    assert rhythm.bound_s == 300.0, "30 medians of 10 s"
    rhythm.report(590.0 + 200.0)  # an evaluation of 20 medians
    assert rhythm.bound_s == 600.0, "three times the longest"
    assert rhythm.learned == "reports came every 10 s, at most 200 s apart"
    assert rhythm.quiet_s(800.0) == 10.0
    rhythm.progress(799.0)
    assert rhythm.quiet_s(800.0) == 1.0
    rhythm.begin(900.0)
    assert (rhythm.quiet_s(901.0), rhythm.bound_s) == (1.0, 1000.0), "a new worker group may compile again"
    rhythm.report(1200.0)
    assert rhythm.bound_s == 600.0
    rhythm.report(1210.0)
    assert rhythm.bound_s == 600.0


def test_fast_reports_have_the_least_bound() -> None:
    rhythm = Rhythm(CONFIG, 0.0)
    for now in range(10):
        rhythm.report(now / 10)
    assert rhythm.bound_s == 60.0


@pytest.mark.parametrize(
    ("stacks", "odd", "sentence"),
    [
        (
            {0: REDUCING, 1: ASLEEP},
            [1],
            "rank 1 is in rest (train.py:12), the others wait in all_reduce (distributed_c10d.py:2810)",
        ),
        ({0: ASLEEP, 1: BARRIER, 2: REDUCING}, [0], "rank 0 is in rest (train.py:12), the others wait in barrier"),
        ({0: REPORTING, 1: ASLEEP}, [1], "rank 1 is in rest (train.py:12), the others wait in report (train_fn_utils.py"),
        (
            {0: REDUCING, 1: READING},
            [1],
            "rank 1 is in wait (threading.py:9), called by loop (train.py:30), the others wait in all_reduce",
        ),
        ({0: REDUCING, 1: "state: stopped\nwhatever"}, [1], "rank 1 is stopped (SIGSTOP), the others wait in all_reduce"),
        ({0: REDUCING, 1: "the process is gone"}, [1], "rank 1 is gone, the others wait in all_reduce"),
        ({0: ASLEEP, 1: ASLEEP, 2: stack("other (/x.py:1)")}, [2], "rank 2 is in other (x.py:1), the others in rest"),
        ({0: ASLEEP, 1: ASLEEP}, [], "all ranks are in rest (train.py:12)"),
        ({0: REDUCING, 1: BARRIER}, [], "all ranks are in all_reduce"),
        ({0: ASLEEP, 1: stack("other (/x.py:1)")}, [], "rank 0 is in rest (train.py:12); rank 1 is in other (x.py:1)"),
        ({0: "no stacks: its node did not answer", 1: "no stacks"}, [], "the stacks tell nothing"),
    ],
)
def test_the_rank_that_is_somewhere_else_is_named(stacks: dict[int, str], odd: list[int], sentence: str) -> None:
    found, said = odd_ranks(stacks)
    assert found == odd
    assert said.startswith(sentence)


def test_a_stack_without_the_train_function_tells_no_place() -> None:
    assert where(STACK.replace("train_loop_per_worker", "other")) == ("", "")


class Played:
    """A hang callback with ranks that answer polls, and a clock."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, action: str):
        self.now, self.notes, self.asked = 0.0, list[dict[str, Any]](), 0
        patch.setattr("plugin_core.driver.train.rhythm.time", SimpleNamespace(monotonic=lambda: self.now))
        patch.setattr(hang_callback, "of_workers", self.stacks)
        config = HangDetection(min_s=60.0, start_s=100.0, action=action)
        self.rundir = RunDir.at(str(folder / "run"))
        self.callback = HangCallback(self.rundir, 1, config, self.warn)
        self.callback.after_worker_group_start([object()] * 2)
        self.callback.after_worker_group_training_start([object()] * 2)

    def warn(self, sentence: str, **more: Any) -> None:
        self.notes.append({"warning": sentence, **more})

    def stacks(self, *given: Any) -> dict[int, str]:
        self.asked += 1
        return {0: REDUCING, 1: ASLEEP}

    def polls(self, until: float, moves: bool = False) -> dict[int, Any]:
        """Poll twice a second; the last answers."""
        while self.now < until:
            errors = self.poll(self.now + 0.5, moves)
        return errors

    def poll(self, now: float, moves: bool = False) -> dict[int, Any]:
        self.now = now
        statuses = {rank: SimpleNamespace(error=None, running=True, moves=moves and rank == 1) for rank in (0, 1)}
        self.callback.after_worker_group_poll_status(SimpleNamespace(worker_statuses=statuses, errors={}, finished=False))
        return {rank: status.error for rank, status in statuses.items()}

    def report(self, now: float) -> None:
        self.polls(now)
        self.callback.after_report(None, [])


def test_a_hang_is_told_with_its_rank_and_again_only_after_a_long_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path, monkeypatch, "warn")
    for now in (10.0, 11.0, 12.0):
        played.report(now)
    assert (played.polls(71.0), played.notes) == ({0: None, 1: None}, [])
    assert played.polls(72.5) == {0: None, 1: None}
    ((said),) = [note["warning"] for note in played.notes]
    why = "no report for 60 s (reports came every 1 s, at most 1 s apart): rank 1 is in rest (train.py:12)"
    assert said.startswith(f"the training hangs: {why}")
    kept = Path(played.rundir.location.path, ".step", "hangs", "001-001.txt").read_text()
    assert said.endswith(f"stacks: {played.rundir.uri}/.step/hangs/001-001.txt")
    assert kept.startswith("rank 0\nstate: sleeping")
    played.polls(130.0)
    assert played.asked == 1
    played.polls(135.0)
    assert played.asked == 2
    played.report(140.0)
    played.polls(600.0)
    assert played.asked == 3


def test_with_restart_the_odd_rank_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(tmp_path, monkeypatch, "restart")
    errors = played.polls(100.0)
    assert errors[0] is None
    assert isinstance(errors[1], InfrastructureError)
    assert errors[1].message.startswith("hang: no report for 100 s (before the first two reports): rank 1 is in rest")
    assert played.notes[0]["quiet_s"] == 100.0


def test_progress_and_uploads_are_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(tmp_path, monkeypatch, "restart")
    played.polls(1000.0, moves=True)
    assert played.polls(1099.0) == {0: None, 1: None}
    assert played.notes == []


def test_while_the_controller_stands_still_nobody_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first poll after that has the answers of before it."""
    played = Played(tmp_path, monkeypatch, "restart")
    for now in (10.0, 11.0, 12.0):
        played.report(now)
    played.polls(20.0)
    assert played.poll(5000.0) == {0: None, 1: None}
    played.report(5001.0)
    played.report(5002.0)
    assert played.polls(5061.5) == {0: None, 1: None}
    assert played.notes == []
    assert isinstance(played.polls(5062.0)[1], InfrastructureError), "the pause is not an interval to learn from"


def test_progress_outside_a_training_does_nothing() -> None:
    call: Any = progress
    assert call() is None
