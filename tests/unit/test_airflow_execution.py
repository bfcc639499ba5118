"""How a task of the provider runs, without a database: execute, defer, resume, and cancel from outside."""

import asyncio
import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

pytest.importorskip("airflow")

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    TaskDeferred,
)
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from airflow_provider import base, listener, triggers
from airflow_provider.base import RayStepOperator
from airflow_provider.common import RUN_KEY, over, writer
from airflow_provider.hooks import RayJobsHook
from airflow_provider.triggers import RayStepTrigger
from devtools.chaos import wait_until
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import ClusterUnreachableError, UserCodeError
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.supervisor.events import Line
from plugin_core.supervisor.supervisor import run_sync
from tests.support.airflow_tasks import TOKEN, task_instance, train_operator
from tests.support.airflow_tasks import fake as fake

# ---- execute, defer, resume


def test_execute_submits_and_defers_and_the_trigger_brings_the_result(fake: FakeCluster, tmp_path: Path) -> None:
    operator = train_operator(ray_conn_id="fake")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute({"ti": task_instance()})
    trigger = deferred.value.trigger
    assert isinstance(trigger, RayStepTrigger)
    event = fire(trigger)
    result = operator.execute_complete({"ti": task_instance()}, event)
    assert result["run"]["uri"] == str(tmp_path / "d--r--train")
    assert result["metrics"] == {"loss": 0.5}
    assert fake.submits == 1
    # the next try of a task that succeeded
    assert train_operator(ray_conn_id="fake").execute({"ti": task_instance(try_number=2)}) == result
    assert fake.submits == 1


class Notify:
    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None: ...


def validate(checkpoint: Any) -> dict[str, Any]:
    raise NotImplementedError


def test_a_validation_and_callbacks_travel_with_a_tasks_step(fake: FakeCluster, tmp_path: Path) -> None:
    operator = train_operator(
        ray_conn_id="fake",
        validation={"fn": validate, "fn_kwargs": {"day": "{{ ds }}"}},
        run_config={"callbacks": [Notify, "package.module:Notify"]},
    )
    operator.render_template_fields({"ds": "2026-11-25"})
    with pytest.raises(TaskDeferred):
        operator.execute({"ti": task_instance()})
    record = RunDir.at(str(tmp_path / "d--r--train")).read_record()["spec"]
    assert record["validation"]["fn"].startswith("value:validate#")
    assert record["validation"]["fn_kwargs"] == {"day": "2026-11-25"}
    first, second = record["run_config"]["callbacks"]
    assert (first.partition("#")[0], second) == ("value:Notify", "package.module:Notify")


def links_of(operator: RayStepOperator) -> dict[str, str]:
    """What Airflow collects at the end of the task's process. There is no XCom here: asking it would be an error."""
    return {link.name: link.get_link(operator, ti_key=task_instance()) for link in operator.operator_extra_links}


def test_a_tasks_links_are_known_as_soon_as_there_is_something_to_show_and_xcom_is_never_asked(fake: FakeCluster) -> None:
    pushed: dict[str, Any] = {}
    ti = task_instance()
    ti.xcom_push = lambda key, value: pushed.update({key: value})
    first = train_operator(ray_conn_id="fake")
    assert links_of(first) == {"Ray job": "", "Tracking": ""}, "it failed before the submit"
    with pytest.raises(TaskDeferred) as deferred:
        first.execute({"ti": ti})
    (job,) = fake.jobs
    page = f"{fake.address}/#/jobs/{job}"
    assert links_of(first) == {"Ray job": page, "Tracking": ""}
    assert pushed == {"_link_RayJobLink": page}, "for a task that does not defer, and runs"

    resumed, event = train_operator(ray_conn_id="fake"), fire(deferred.value.trigger)
    event["result"]["tracking"] = {"mlflow": "https://mlflow/runs/1"}
    resumed.resume_execution(deferred.value.method_name, {**deferred.value.kwargs, "event": event}, {"ti": ti})
    assert links_of(resumed) == {"Ray job": page, "Tracking": "https://mlflow/runs/1"}


def test_a_synchronous_operator_returns_the_result_itself(fake: FakeCluster) -> None:
    assert train_operator(ray_conn_id="fake", deferrable=False).execute({"ti": task_instance()})["kind"] == "train"


def test_the_trigger_keeps_no_secret_and_is_made_again_from_what_it_keeps(fake: FakeCluster) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake").execute({"ti": task_instance()})
    path, kept = deferred.value.trigger.serialize()
    assert path == "airflow_provider.triggers.RayStepTrigger"
    assert set(kept) == {"run_uri", "ray_conn_id", "since_attempt", "old_cancels"}
    assert TOKEN not in json.dumps(kept) + repr(deferred.value.trigger) + repr(RayJobsHook("fake").get_cluster())
    assert RayStepTrigger(**kept).serialize() == (path, kept)


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (UserCodeError("bad", "Traceback: theirs"), AirflowFailException, "UserCodeError: bad\n\nTraceback: theirs"),
        (ClusterUnreachableError("no answer"), AirflowException, "ClusterUnreachableError: no answer"),
    ],
)
def test_an_error_is_retried_only_where_that_helps_and_ends_with_the_users_traceback(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception], text: str
) -> None:
    async def run(self: Any) -> None:
        raise error

    monkeypatch.setattr(triggers.Supervisor, "run", run)
    event = fire(RayStepTrigger("/runs/a", None, 0))
    with pytest.raises(raised) as failed:
        train_operator().execute_complete({}, event)
    assert (type(failed.value), str(failed.value)) == (raised, text)


@pytest.mark.parametrize(
    ("state", "job"), [("deferred", "RUNNING"), ("scheduled", "RUNNING"), ("failed", "STOPPED"), ("gone", "STOPPED")]
)
def test_a_kill_stops_the_job_only_when_the_task_is_over(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, state: str, job: str
) -> None:
    trigger = deferred_for_ever(fake)
    monkeypatch.setattr(triggers, "task_state", lambda ti: state)

    async def killed_twice() -> None:
        """Airflow cancels a trigger's task again each second, also while it is in `on_kill`."""
        killing = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(0.01)
        killing.cancel()
        await asyncio.gather(killing, *triggers._CANCELLING, return_exceptions=True)

    asyncio.run(killed_twice())
    assert list(fake.jobs.values()) == [job]
    intent = RunDir.at(trigger.serialize()[1]["run_uri"]).intent()
    assert (intent.cancel_through, intent.whole_run) == (1 if job == "STOPPED" else 0, frozenset())


def test_a_synchronous_task_is_cancelled_by_a_kill_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster
) -> None:
    fake.plays = ["hang"]
    state = "restarting"
    monkeypatch.setattr(base, "task_state", lambda ti: state)
    operator = train_operator(ray_conn_id="fake", deferrable=False, limits={"heartbeat_ttl_s": 0.1})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, {"ti": task_instance()})
        while "RUNNING" not in fake.jobs.values():
            time.sleep(0.01)
        operator.on_kill()
        assert list(fake.jobs.values()) == ["RUNNING"]
        state = "failed"
        operator.on_kill()
        assert list(fake.jobs.values()) == ["STOPPED"]
        with pytest.raises(AirflowFailException, match="StepCancelledError: the run was cancelled"):
            running.result(timeout=60)


def test_a_trigger_that_broke_leaves_no_job_behind(fake: FakeCluster) -> None:
    fake.plays = ["hang"]
    operator, context = train_operator(ray_conn_id="fake", limits={"heartbeat_ttl_s": 0.1}), {"ti": task_instance()}
    with pytest.raises(TaskDeferred):
        operator.execute(context)
    resumed = train_operator(ray_conn_id="fake", limits={"heartbeat_ttl_s": 0.1})
    with pytest.raises(AirflowException, match="Trigger failure"):
        resumed.resume_execution("__fail__", {"error": "Trigger failure"}, context)
    assert links_of(resumed)["Ray job"].endswith(next(iter(fake.jobs)))
    assert list(fake.jobs.values()) == ["STOPPED"]


def test_a_task_is_over_only_if_it_will_not_run_again() -> None:
    assert [s for s in ("failed", "success", "deferred", "running", "queued", "restarting", None) if over(s)] == [
        "failed",
        "success",
    ]


def deferred_for_ever(fake: FakeCluster) -> RayStepTrigger:
    """The trigger of a task whose job does not end."""
    fake.plays = ["hang"]
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake", limits={"heartbeat_ttl_s": 0.1}).execute({"ti": task_instance()})
    trigger = deferred.value.trigger
    assert isinstance(trigger, RayStepTrigger)
    return trigger


def fire(trigger: RayStepTrigger) -> dict[str, Any]:
    async def first() -> Any:
        async for event in trigger.run():
            return event.payload

    payload: dict[str, Any] = json.loads(json.dumps(asyncio.run(first())))
    return payload


# ---- the listener

TASK = {"dag_id": "d", "run_id": "r", "task_id": "train", "map_index": -1}


@pytest.fixture
def over_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no database here to ask."""
    monkeypatch.setattr(listener, "_is_over", lambda task: True)


class Row:
    """The part of Airflow's row of a task that the listener uses."""

    _sa_instance_state = None
    dag_id, run_id, task_id, map_index = "d", "r", "train", -1

    def __init__(self, state: str):
        self.state = state


@pytest.mark.usefixtures("over_tasks")
@pytest.mark.parametrize(("state", "job"), [("failed", "STOPPED"), ("success", "STOPPED"), ("up_for_retry", "RUNNING")])
def test_a_task_that_is_over_is_cancelled_from_airflows_servers(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, state: str, job: str
) -> None:
    kept = deferred_for_ever(fake).serialize()[1]
    asked: list[dict[str, Any]] = []

    def cancel_runs_of(row: Any, **ids: Any) -> None:
        asked.append(ids)
        run_sync(listener._cancel(TASK, kept["run_uri"], kept["ray_conn_id"]))

    monkeypatch.setattr(listener, "_cancel_runs_of", cancel_runs_of)
    listener.on_task_instance_failed(None, Row(state), None)
    assert list(fake.jobs.values()) == [job]
    assert asked == ([] if job == "RUNNING" else [TASK])


def test_a_task_that_was_cleared_meanwhile_keeps_its_new_attempt(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster
) -> None:
    kept = deferred_for_ever(fake).serialize()[1]
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(listener, "_is_over", asked.append)
    run_sync(listener._cancel(TASK, kept["run_uri"], kept["ray_conn_id"]))
    assert list(fake.jobs.values()) == ["RUNNING"]
    assert RunDir.at(kept["run_uri"]).intent().cancel_through == 0
    assert asked == [TASK]


def test_a_tasks_own_process_leaves_the_listener_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_cancel_runs_of", lambda row, **ids: pytest.fail("it was asked"))
    listener.on_task_instance_failed("running", task_instance(state="failed"), None)


@pytest.mark.usefixtures("over_tasks")
def test_the_listener_starts_no_local_cluster_to_cancel_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path))
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.claim(1, "http://x", "s")
    run_sync(listener._cancel(TASK, rundir.uri, None))
    assert rundir.intent().cancel_through == 1
    assert not list(tmp_path.glob("head-*/state.json"))


class Store(dict[str, Any]):
    """A task's state store, as Airflow gives it to the task."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


def test_a_task_that_delivered_its_result_leaves_nothing_for_the_end_of_its_dag_run(fake: FakeCluster) -> None:
    store = Store()
    context = {"ti": task_instance(), "task_state_store": store}
    operator = train_operator(ray_conn_id="fake")
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)
    assert list(store) == [RUN_KEY]
    operator.execute_complete(context, fire(deferred.value.trigger))
    assert list(store) == []


@pytest.mark.usefixtures("over_tasks")
def test_many_tasks_that_end_share_one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of 500 runs that a DAG run leaves, one lives."""
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path))
    rundirs = [RunDir.at(str(tmp_path / f"runs/{number}")) for number in range(500)]
    for rundir in rundirs:
        rundir.claim(1, "http://x", "s")
    for rundir in rundirs[1:]:
        rundir.record_end(1, AttemptEnd("succeeded"))
    from airflow.models import DagRun  # noqa: F401 - the row refers to its table
    from airflow.models.task_state_store import TaskStateStoreModel

    engine = create_engine("sqlite://")
    TaskStateStoreModel.__table__.create(engine)
    before = threading.active_count()
    with Session(engine) as session:
        for number, rundir in enumerate(rundirs):
            value = json.dumps({"uri": rundir.uri, "ray_conn_id": None})
            row = {"dag_run_id": 1, "task_id": f"t{number}", "key": RUN_KEY, "dag_id": "d", "run_id": "r", "value": value}
            session.add(TaskStateStoreModel(**row))
        session.flush()
        row = session.scalars(select(TaskStateStoreModel)).first()
        listener.on_dag_run_success(row, "over")
        session.commit()
    wait_until(lambda: rundirs[0].intent().cancel_through == 1)
    assert threading.active_count() - before <= 64 + 2, "one for the loop, those of the storage"
    assert [rundir.intent().cancel_through for rundir in rundirs[1:]] == [0] * 499


# ---- the task's log


def test_lines_have_the_time_of_what_happened_and_a_long_part_of_the_jobs_log_is_folded_under_its_worst_line() -> None:
    with capture_logs() as entries:
        write = writer(structlog.get_logger())
        write(Line("report 1", logging.INFO, 1_800_000_000.0))
        write(Line("2 lines", logging.INFO, 0.0, ("a", "b")))
        lines = (*"abcde", "::endgroup::")
        write(Line("the job's log, 6 lines: WARNING: slow", logging.WARNING, 0.0, lines))
    said = [(entry["event"], entry["log_level"]) for entry in entries]
    folded = ["::group::the job's log, 6 lines: WARNING: slow", *"abcde", " ::endgroup::", "::endgroup::"]
    assert said == [("report 1", "info"), ("a", "info"), ("b", "info"), *((text, "warning") for text in folded)]
    assert entries[0]["timestamp"] == "2027-01-15T08:00:00+00:00"
