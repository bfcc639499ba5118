"""What a search tells its journal, over all its attempts, and when it stops a trial."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugin_core import RunConfig, TrainSpec, TuneSpec
from plugin_core.driver.tune import callbacks
from plugin_core.driver.tune.report_channel import STOPPED, Mailbox
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalWriter, iter_reports


def search(tmp_path: Path, **fields: Any) -> tuple[TuneSpec, RunDir]:
    spec = TuneSpec(
        train=TrainSpec(framework="python", train_loop_per_worker="devtools.steps:counting_loop"),
        param_space={"train_loop_config": {"lr": {"uniform": [0, 1]}}},
        metric="loss",
        mode="min",
        num_samples=2,
        run_config=RunConfig(name="search", storage_path=str(tmp_path)),
        **fields,
    )
    return spec, RunDir.of(spec)


class Attempt:
    """One attempt of a search, whose trials report by hand."""

    def __init__(self, tmp_path: Path, number: int):
        spec, self.rundir = search(tmp_path)
        self.writer = JournalWriter(self.rundir, number)
        self.search = callbacks.begin(callbacks.Search(spec, self.writer, None, trials=2))
        self.search.goes_on(iter_reports(self.rundir))
        self.trials = [self.trial("a"), self.trial("b")]

    @staticmethod
    def trial(name: str, over: bool = False) -> Any:
        return SimpleNamespace(trial_id=name, is_finished=lambda: over, last_result=None)

    def report(self, trial: Any, number: int, loss: float) -> None:
        trial.last_result = {"loss": loss, "leg": f"trial-{trial.trial_id}", "reports": number}
        callbacks.Report().on_trial_result(0, self.trials, trial, trial.last_result)

    def complete(self, trial: Any) -> None:
        callbacks.Report().on_trial_complete(0, self.trials, trial)

    def die(self) -> None:
        self.writer.close()


def test_after_a_kill_the_reports_of_a_search_go_on_counting_and_none_is_told_twice(tmp_path: Path) -> None:
    first = Attempt(tmp_path, 1)
    a, b = first.trials
    first.report(a, 1, 0.1)
    first.complete(a)
    first.report(b, 1, 0.9)
    first.report(b, 2, 0.8)
    first.die()
    second = Attempt(tmp_path, 2)
    second.trials[0] = second.trial("a", over=True)
    b = second.trials[1]
    for number, loss in ((1, 0.9), (2, 0.8), (3, 0.7)):
        second.report(b, number, loss)
    second.complete(b)
    second.die()
    entries = list(iter_reports(second.rundir))
    assert [(entry["attempt"], entry["report"]) for entry in entries] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)]
    told = [(entry["of_trial"], entry["metrics"]["loss"], entry["metrics"]["best"]) for entry in entries[-2:]]
    assert told == [(3, 0.7, 0.1), (3, 0.7, 0.1)]
    assert [entry["metrics"]["trials_over"] for entry in entries[-2:]] == [1, 2]


def test_a_trial_that_its_process_lost_in_the_same_attempt_is_not_told_twice_either(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, 1)
    a, _ = attempt.trials
    for number in (1, 2, 1, 2, 3):
        attempt.report(a, number, 1 / number)
    attempt.die()
    assert [entry["of_trial"] for entry in iter_reports(attempt.rundir)] == [1, 2, 3]


@pytest.mark.parametrize(("reported", "stops"), [({"val": {"acc": 0.9}}, True), ({"val/acc": 0.9}, True), ({}, False)])
def test_a_limit_may_be_on_a_nested_metric(tmp_path: Path, reported: dict[str, Any], stops: bool) -> None:
    spec, rundir = search(tmp_path, stop={"val/acc": 0.9})
    callbacks.begin(callbacks.Search(spec, JournalWriter(rundir, 1), None, trials=2))
    assert callbacks.Stop()("a", reported) is stops


def test_at_its_end_a_search_releases_the_trials_that_wait_for_a_report_once(tmp_path: Path) -> None:
    """One that waits could not end its trackers before Ray Tune ends its process."""
    spec, rundir = search(tmp_path)
    released: list[str] = []
    found = callbacks.begin(callbacks.Search(spec, JournalWriter(rundir, 1), time.monotonic() + 3600, trials=2))
    found.release = lambda: released.append("all")
    assert (callbacks.Stop().stop_all(), released) == (False, [])
    found.deadline = time.monotonic() - 1
    assert [callbacks.Stop().stop_all() for _ in range(2)] == [True, True]
    assert released == ["all"]


def test_a_trial_that_waits_for_a_report_and_one_that_asks_later_are_released() -> None:
    async def released() -> list[Any]:
        mailbox = Mailbox()
        waits = asyncio.create_task(mailbox.next("waits"))
        working = asyncio.create_task(mailbox.report("late", {"report": 1}))
        await asyncio.sleep(0)
        await mailbox.stop()
        found = [await waits, await mailbox.next("late"), await mailbox.next("new")]
        working.cancel()
        return found

    assert asyncio.run(released()) == [STOPPED] * 3
