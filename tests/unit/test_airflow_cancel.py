"""Cancels that reach a task of the provider before its attempt exists, without a database."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("airflow")

from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider import base, listener, triggers
from airflow_provider.triggers import RayStepTrigger
from devtools.chaos import wait_until
from plugin_core.clusters.fake import FakeCluster
from plugin_core.runs.directory import Receipt, RunDir
from plugin_core.supervisor.submitter import Submitter
from plugin_core.supervisor.supervisor import run_sync
from tests.support.airflow_tasks import fake as fake
from tests.support.airflow_tasks import task_instance, train_operator
from tests.unit.test_airflow_execution import TASK, fire

QUICK = {"heartbeat_ttl_s": 0.1}


def test_the_trigger_obeys_a_cancel_of_the_run_that_came_before_the_task_deferred(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster
) -> None:
    """The cluster is full when the task submits, so its first attempt is the trigger's to claim."""
    begin = Submitter.begin

    async def cancelled_meanwhile(self: Submitter, *args: Any) -> None:
        self.rundir.cancel()

    monkeypatch.setattr(Submitter, "begin", cancelled_meanwhile)
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake").execute({"ti": task_instance()})
    monkeypatch.setattr(Submitter, "begin", begin)
    kept = deferred.value.trigger.serialize()[1]
    assert fire(RayStepTrigger(**kept))["outcome"] == "cancelled"
    assert fake.jobs == {}
    # the next try wants the run again
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake").execute({"ti": task_instance(try_number=2)})
    assert fire(deferred.value.trigger)["status"] == "success"


def test_a_trigger_that_an_earlier_version_stored_still_follows_its_run(fake: FakeCluster) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake").execute({"ti": task_instance()})
    kept = deferred.value.trigger.serialize()[1]
    del kept["old_cancels"]
    assert fire(RayStepTrigger(**kept))["status"] == "success"
    assert RunDir.at(kept["run_uri"]).receipts() == [1]


# ---- the task is marked while its process prepares or submits


class Marked:
    """The task's state in Airflow. A mark, of which there is one, also calls the listener in Airflow's server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, uri: str):
        self.state, self.uri, self.was, self.asked = "running", uri, False, 0
        monkeypatch.setattr(base, "task_state", self.task_state)
        monkeypatch.setattr(triggers, "task_state", self.task_state)
        monkeypatch.setattr(listener, "_is_over", lambda task: self.state == "failed")

    def task_state(self, ti: Any) -> str:
        self.asked += 1
        return self.state

    def failed(self, known: bool = True) -> None:
        """`known`: whether the task has noted its run, so that the listener finds it."""
        if self.was:
            return
        self.state, self.was = "failed", True
        if known:
            run_sync(listener._cancel(TASK, self.uri, "fake"))


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Marked:
    return Marked(monkeypatch, str(tmp_path / "d--r--train"))


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None]) -> None:
    """Do something each time a function is about to be called."""
    real = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act()
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, wrapped)


def test_a_task_that_is_marked_while_it_prepares_starts_no_job(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, marked: Marked
) -> None:
    before(monkeypatch, base, "prepare", lambda: marked.failed(known=False))
    with pytest.raises(AirflowFailException, match="StepCancelledError"):
        train_operator(ray_conn_id="fake").execute({"ti": task_instance()})
    assert RunDir.at(marked.uri).receipts() == []
    assert RunDir.at(marked.uri).intent().whole_run == frozenset(), "others may follow the same run"
    # it is cleared
    marked.state = "running"
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake").execute({"ti": task_instance()})
    assert fire(deferred.value.trigger)["status"] == "success"


def test_a_next_try_that_is_marked_before_it_notes_its_run_stops_the_live_job(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, marked: Marked
) -> None:
    fake.plays = ["hang"]
    with pytest.raises(TaskDeferred):
        train_operator(ray_conn_id="fake", limits=QUICK).execute({"ti": task_instance()})
    before(monkeypatch, base, "prepare", lambda: marked.failed(known=False))
    with pytest.raises(AirflowFailException, match="StepCancelledError"):
        train_operator(ray_conn_id="fake", limits=QUICK).execute({"ti": task_instance(try_number=2)})
    assert list(fake.jobs.values()) == ["STOPPED"]


def test_a_process_that_is_told_to_end_in_its_last_try_while_it_prepares_starts_no_job(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, marked: Marked
) -> None:
    operator = train_operator(ray_conn_id="fake")
    before(monkeypatch, base, "prepare", operator.on_kill)
    with pytest.raises(AirflowFailException, match="StepCancelledError"):
        operator.execute({"ti": task_instance(try_number=1, max_tries=0)})
    assert fake.jobs == {}


@pytest.mark.parametrize("claimed", [False, True])
def test_a_task_that_is_marked_around_the_claim_starts_no_job(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, marked: Marked, claimed: bool
) -> None:
    claim = RunDir.claim

    def claim_then(self: RunDir, *args: Any) -> Receipt | None:
        receipt = claim(self, *args)
        marked.failed()
        return receipt

    if claimed:
        monkeypatch.setattr(RunDir, "claim", claim_then)
    else:
        before(monkeypatch, RunDir, "claim", marked.failed)
    with pytest.raises(TaskDeferred):  # Airflow refuses it for a task that is over
        train_operator(ray_conn_id="fake").execute({"ti": task_instance()})
    assert fake.jobs == {}
    marked.state = "running"
    monkeypatch.setattr(RunDir, "claim", claim)
    result = train_operator(ray_conn_id="fake", deferrable=False).execute({"ti": task_instance()})
    assert result["metrics"] == {"loss": 0.5}
    assert list(fake.jobs.values()) == ["SUCCEEDED"]


def test_a_trigger_whose_task_is_marked_before_its_first_claim_starts_no_job(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, marked: Marked
) -> None:
    begin = Submitter.begin

    async def queued(self: Submitter, *args: Any) -> None:
        return None

    monkeypatch.setattr(Submitter, "begin", queued)
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake").execute({"ti": task_instance()})
    monkeypatch.setattr(Submitter, "begin", begin)
    before(monkeypatch, RunDir, "claim", marked.failed)
    trigger = deferred.value.trigger
    with ThreadPoolExecutor(1) as pool:
        firing = pool.submit(fire, trigger)
        wait_until(lambda: marked.was)
        run_sync(trigger.on_kill())
        marked.state = "running"
        assert firing.result(timeout=60)["status"] == "success", "only because it was cleared"
    assert list(fake.jobs.values()) == ["SUCCEEDED"]


def test_a_synchronous_task_begins_no_other_attempt_after_it_was_marked(fake: FakeCluster, marked: Marked) -> None:
    """The listener cancels its attempt, and its process lives on for some seconds."""
    fake.plays = ["hang", "succeed"]
    operator = train_operator(ray_conn_id="fake", deferrable=False, limits=QUICK)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, {"ti": task_instance()})
        wait_until(lambda: "RUNNING" in fake.jobs.values())
        marked.failed()
        asked = marked.asked
        wait_until(lambda: marked.asked > asked + 1 or running.done())
        assert list(fake.jobs.values()) == ["STOPPED"]
        operator.on_kill()
        with pytest.raises(AirflowFailException, match="StepCancelledError"):
            running.result(timeout=60)
    assert list(fake.jobs.values()) == ["STOPPED"]
