"""Cancels that reach a task of the provider before its attempt exists, without a database."""

from typing import Any

import pytest

pytest.importorskip("airflow")

from airflow.providers.common.compat.sdk import TaskDeferred

from airflow_provider.triggers import RayStepTrigger
from plugin_core.clusters.fake import FakeCluster
from plugin_core.runs.directory import RunDir
from plugin_core.supervisor.submitter import Submitter
from tests.support.airflow_tasks import fake as fake
from tests.support.airflow_tasks import task_instance, train_operator
from tests.unit.test_airflow_execution import fire


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
