"""The Airflow provider without a database: provider info, operators, hook and trigger."""

import asyncio
import importlib
import importlib.metadata
import inspect
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("airflow")

import jsonschema
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowException,
    AirflowFailException,
    Asset,
    AssetAlias,
    TaskDeferred,
)
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider import base, listener, triggers
from airflow_provider.assets import announce
from airflow_provider.common import over
from airflow_provider.decorators import RayTrainDecoratedOperator, ray_train_task
from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.hooks import RayJobsHook
from airflow_provider.operators import (
    PromoteModelOperator,
    RayBatchInferOperator,
    RayEvaluateOperator,
    RayRetrainOperator,
    RayStepOperator,
    RayTrainOperator,
    RayTuneOperator,
)
from airflow_provider.triggers import RayStepTrigger
from plugin_core import CheckpointRef, Evaluation, TrainSpec
from plugin_core.errors import ClusterUnreachableError, SpecError, UserCodeError
from plugin_core.rundir import RunDir
from plugin_core.specs import StepSpec
from plugin_core.testing import FakeCluster
from tests.unit.airflow_connection import TOKEN
from tests.unit.airflow_connection import fake as fake


def loop(config: dict[str, Any]) -> None:
    raise NotImplementedError


class Predictor:
    """With an attribute that Airflow takes for one of its own lazy values."""

    def resolve(self) -> None:
        raise NotImplementedError


def task_instance(**changed: Any) -> Any:
    ids = {"dag_id": "d", "run_id": "r", "task_id": "train", "map_index": -1, "try_number": 1, "max_tries": 0}
    return SimpleNamespace(**{**ids, **changed}, xcom_push=lambda key, value: None)


def train_operator(**kwargs: Any) -> RayTrainOperator:
    return RayTrainOperator(**{"task_id": "train", "framework": "python", "train_loop_per_worker": loop, **kwargs})


# ---- provider info


def test_the_provider_info_is_valid_for_airflows_runtime_and_in_its_stricter_source_form() -> None:
    info = get_provider_info()
    for file in ("provider_info.schema.json", "provider.yaml.schema.json"):
        schema = json.loads(resources.files("airflow").joinpath(file).read_text())
        source_only = {"state": "ready", "source-date-epoch": 0, "versions": ["0.1.0"]}
        jsonschema.validate({**info, **source_only} if "yaml" in file else info, schema)


def test_the_provider_info_names_what_exists() -> None:
    connection = get_provider_info()["connection-types"][0]
    assert connection["hook-class-name"] == f"{RayJobsHook.__module__}.{RayJobsHook.__name__}"
    assert (connection["connection-type"], connection["hook-name"]) == (RayJobsHook.conn_type, RayJobsHook.hook_name)
    info = get_provider_info()
    classes = [*info["extra-links"], info["task-decorators"][0]["class-name"]]
    for path in classes:
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_airflow_loads_the_listener_by_default() -> None:
    loaded = [point.load() for point in importlib.metadata.entry_points(group="airflow.plugins", name="ray_train")]
    assert [plugin.listeners for plugin in loaded] == [[listener]]


# ---- operators


@pytest.mark.parametrize(
    "operator", [RayTrainOperator, RayTuneOperator, RayEvaluateOperator, RayBatchInferOperator, RayRetrainOperator]
)
def test_an_operator_takes_the_fields_of_its_spec(operator: type[RayStepOperator]) -> None:
    own = {name for name in inspect.signature(operator.__init__).parameters if name not in ("self", "kwargs")}
    shared = set(inspect.signature(RayStepOperator.__init__).parameters) & set(StepSpec.model_fields)
    taken = {"params" if name == "model_params" else name for name in own | shared}
    assert taken == set(operator.spec_class.model_fields) - {"kind"}


def test_a_search_and_a_retraining_take_specs_and_promote_the_next_step(fake: FakeCluster, tmp_path: Path) -> None:
    train = TrainSpec(framework="python", train_loop_per_worker=loop, run_config={"storage_path": str(tmp_path)})
    space = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
    search = RayTuneOperator(task_id="tune", train=train, param_space=space, metric="loss", mode="min", ray_conn_id="fake")
    search.deferrable = False
    found = search.execute({"ti": task_instance(task_id="tune")})
    assert (found["kind"], found["metrics"]) == ("tune", {"loss": 0.5})
    gate = Evaluation(evaluate=loop, must_beat={"loss": {"mode": "min"}})
    retrain = RayRetrainOperator(task_id="retrain", model="m", train=train, evaluate=gate, ray_conn_id="fake")
    retrain.deferrable = False
    assert retrain.execute({"ti": task_instance(task_id="retrain")})["outcome"] == "promoted"
    Path(found["best"]["checkpoint"]["uri"]).mkdir()
    Path(found["best"]["checkpoint"]["uri"], "weights").touch()
    promote = PromoteModelOperator(task_id="promote", result=str(found), name="m", registry=str(tmp_path / "models"))
    version = promote.execute({"ti": task_instance(task_id="promote")})
    assert (version["version"], version["checkpoint"]) == (1, found["best"]["checkpoint"]["uri"])
    refused = PromoteModelOperator(task_id="promote", result="/nowhere", name="m/n")
    with pytest.raises(AirflowFailException, match="SpecError: name: given 'm/n'"):
        refused.execute({"ti": task_instance(task_id="promote")})


def test_a_spec_together_with_fields_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec: given together with framework, train_loop_per_worker; accepted is one"):
        train_operator(spec={"framework": "torch"})


def test_a_wrong_field_is_refused_before_anything_is_submitted_and_not_retried(fake: FakeCluster) -> None:
    operator = train_operator(ray_conn_id="fake", scaling_config={"num_workers": 0})
    with pytest.raises(AirflowFailException, match=r"SpecError: scaling_config.*num_workers: given 0"):
        operator.execute({"ti": task_instance()})
    assert fake.jobs == {}


def test_a_spec_of_another_kind_is_refused(fake: FakeCluster) -> None:
    operator = RayEvaluateOperator(task_id="evaluate", spec=TrainSpec(train_loop_per_worker=loop), ray_conn_id="fake")
    with pytest.raises(AirflowFailException, match="kind: given 'train'; accepted here is EvaluateSpec"):
        operator.execute({"ti": task_instance()})


def test_the_runs_name_is_that_of_the_task_instance_and_never_of_the_try(fake: FakeCluster) -> None:
    operator, place = train_operator(), RayJobsHook("fake").get_place()

    def name(**changed: Any) -> str | None:
        return operator.build_spec(task_instance(**changed), place).run_config.name

    assert name() == "d--r--train" == name(try_number=2)
    assert name(map_index=3) == "d--r--train--3"
    assert name(run_id="manual__2026-01-01T00:00:00+00:00") != name(run_id="manual__2026-01-01T00_00_00_00_00")


def test_a_name_that_the_user_gave_wins(fake: FakeCluster) -> None:
    place = RayJobsHook("fake").get_place()
    named = train_operator(run_config={"name": "mine"})
    assert named.build_spec(task_instance(), place).run_config.name == "mine"
    named.run_name = "operators"
    assert named.build_spec(task_instance(), place).run_config.name == "operators"


def test_the_storage_path_is_the_specs_then_the_operators_then_the_connections(fake: FakeCluster, tmp_path: Path) -> None:
    place = RayJobsHook("fake").get_place()

    def storage(**kwargs: Any) -> str | None:
        return train_operator(**kwargs).build_spec(task_instance(), place).run_config.storage_path

    assert storage() == str(tmp_path)
    assert storage(storage_path="/operators") == "/operators"
    assert storage(storage_path="/operators", run_config={"storage_path": "/specs"}) == "/specs"


def test_templates_are_rendered_in_nested_fields_and_functions_stay_as_they_are() -> None:
    with DAG("d"):
        train = train_operator(train_loop_config={"day": ["{{ ds }}"]}, spec=None)
        infer = RayBatchInferOperator(task_id="infer", predictor=Predictor, checkpoint="s3://{{ ds }}", dataset="x.csv")
    for operator in (train, infer):
        operator.render_template_fields({"ds": "2026-01-01"})
    assert train.spec["train_loop_config"] == {"day": ["2026-01-01"]}
    assert train.spec["train_loop_per_worker"] is loop
    assert infer.spec["predictor"] is Predictor
    assert infer.spec["checkpoint"] == "s3://2026-01-01"


def test_a_train_tasks_output_as_checkpoint_makes_it_upstream() -> None:
    with DAG("d"):
        train = train_operator()
        evaluate = RayEvaluateOperator(task_id="evaluate", evaluate=loop, checkpoint=train.output)
    assert evaluate.upstream_task_ids == {"train"}


def test_a_checkpoint_is_read_from_a_result_and_from_its_text(fake: FakeCluster) -> None:
    result = {
        "kind": "train",
        "schema_version": 1,
        "run": {"uri": "/runs/a", "name": "a"},
        "metrics": {"nan": None},
        "checkpoint": {"uri": "/runs/a/checkpoint_1"},
    }
    for given in (result, str(result), "/runs/a/checkpoint_1"):
        operator = RayEvaluateOperator(task_id="evaluate", evaluate=loop, checkpoint=given)
        spec = operator.build_spec(task_instance(), RayJobsHook("fake").get_place())
        assert getattr(spec, "checkpoint") == CheckpointRef(uri="/runs/a/checkpoint_1")  # noqa: B009 - of a subclass


def test_a_spec_is_read_from_a_file_beside_the_dag(fake: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "step.yaml").write_text("framework: python\ntrain_loop_per_worker: m:f\n")
    with DAG("d") as dag:
        operator = RayTrainOperator(task_id="train", spec="step.yaml")
    dag.fileloc = str(tmp_path / "dag.py")
    spec = operator.build_spec(task_instance(), RayJobsHook("fake").get_place())
    assert isinstance(spec, TrainSpec)
    assert spec.train_loop_per_worker == "m:f"


def test_a_spec_object_shows_no_memory_address_to_airflow() -> None:
    """Airflow takes the DAG for a new version whenever what it serialises differs."""
    operator = RayTrainOperator(task_id="train", spec=TrainSpec(framework="python", train_loop_per_worker=loop))
    assert operator.spec == {"kind": "train", "framework": "python", "train_loop_per_worker": loop}


@pytest.mark.parametrize(
    ("page", "tasks"), [("docs/airflow.md", {"train", "evaluate"}), ("README.md", {"train", "evaluate"})]
)
def test_the_dags_of_the_docs_are_dags(page: str, tasks: set[str]) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    blocks = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import RayEvaluateOperator" in block
    ]
    namespace: dict[str, Any] = {}
    code = re.sub(r"^(\w+\(\))$", r"made = \1", blocks[0], flags=re.MULTILINE)
    exec(compile(code, page, "exec"), namespace)
    made = namespace["made"]
    assert set(made.task_ids) >= tasks
    assert made.get_task("evaluate").upstream_task_ids == {"train"}


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


def test_a_synchronous_operator_returns_the_result_itself(fake: FakeCluster) -> None:
    assert train_operator(ray_conn_id="fake", deferrable=False).execute({"ti": task_instance()})["kind"] == "train"


def test_the_trigger_keeps_no_secret_and_is_made_again_from_what_it_keeps(fake: FakeCluster) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake").execute({"ti": task_instance()})
    path, kept = deferred.value.trigger.serialize()
    assert path == "airflow_provider.triggers.RayStepTrigger"
    assert set(kept) == {"run_uri", "ray_conn_id", "since_attempt"}
    assert TOKEN not in json.dumps(kept) + repr(deferred.value.trigger) + repr(RayJobsHook("fake").get_cluster())
    assert RayStepTrigger(**kept).serialize() == (path, kept)


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (UserCodeError("bad", "Traceback: theirs"), AirflowFailException, "UserCodeError: bad\n\nTraceback: theirs"),
        (ClusterUnreachableError("no answer"), AirflowException, "ClusterUnreachableError: no answer"),
    ],
)
def test_an_error_is_retried_only_where_that_makes_sense_and_ends_with_the_users_traceback(
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
    fake.plays = ["hang"]
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake", limits={"heartbeat_ttl_s": 0.1}).execute({"ti": task_instance()})
    trigger = deferred.value.trigger
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
    assert (intent.cancel_through, intent.whole_run) == (1 if job == "STOPPED" else 0, "")


def test_a_synchronous_task_is_cancelled_by_a_kill_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster
) -> None:
    fake.plays = ["hang"]
    state = "restarting"
    monkeypatch.setattr(base, "task_state", lambda ti: state)
    operator = train_operator(ray_conn_id="fake", deferrable=False, limits={"heartbeat_ttl_s": 0.1})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, {"ti": task_instance()})
        while operator._following is None:
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
    with pytest.raises(AirflowException, match="Trigger failure"):
        operator.resume_execution("__fail__", {"error": "Trigger failure"}, context)
    assert list(fake.jobs.values()) == ["STOPPED"]


def test_only_a_task_that_will_not_run_again_is_over() -> None:
    assert [s for s in ("failed", "success", "deferred", "running", "queued", "restarting", None) if over(s)] == [
        "failed",
        "success",
    ]


def fire(trigger: RayStepTrigger) -> dict[str, Any]:
    async def first() -> Any:
        async for event in trigger.run():
            return event.payload

    payload: dict[str, Any] = json.loads(json.dumps(asyncio.run(first())))
    return payload


# ---- decorator, outlets, dry run, clear


def decorated(call: tuple[Any, ...] = (), function: Any = loop, **fields: Any) -> RayTrainDecoratedOperator:
    with DAG("d"):
        made = ray_train_task(function, framework="python", ray_conn_id="fake", **fields)(*call)
    operator = made.operator
    assert isinstance(operator, RayTrainDecoratedOperator)
    return operator


def test_a_decorated_function_is_the_loop_and_what_it_is_called_with_its_config(fake: FakeCluster) -> None:
    operator = decorated(({"epochs": 5, "day": "{{ ds }}"},), scaling_config={"num_workers": 2})
    operator.render_template_fields({"ds": "2026-01-01"})
    spec = operator.build_spec(task_instance(), RayJobsHook("fake").get_place())
    assert isinstance(spec, TrainSpec)
    assert spec.train_loop_per_worker is loop
    assert spec.train_loop_config == {"epochs": 5, "day": "2026-01-01"}
    assert spec.scaling_config.num_workers == 2


def test_a_decorated_functions_config_may_stand_in_the_decorator_or_be_its_default(fake: FakeCluster) -> None:
    def with_default(config: dict[str, Any] = {"epochs": 2}) -> None:  # noqa: B006
        raise NotImplementedError

    def bare() -> None:
        raise NotImplementedError

    def config(operator: RayTrainDecoratedOperator) -> Any:
        return operator.build_spec(task_instance(), RayJobsHook("fake").get_place()).to_json()["train_loop_config"]

    assert config(decorated(train_loop_config={"epochs": 3})) == {"epochs": 3}
    assert config(decorated(function=with_default)) == {"epochs": 2}
    assert config(decorated()) == config(decorated(function=bare)) == {}


def test_what_a_decorated_function_cannot_take_is_refused(fake: FakeCluster) -> None:
    with pytest.raises(SpecError, match=r"train_loop_config: given to @task\.ray_train and in the call; accepted is one"):
        decorated(({},), train_loop_config={"epochs": 3})
    with pytest.raises(SpecError, match=r"spec: given to @task\.ray_train"):
        decorated(spec={"framework": "torch"})
    with pytest.raises(AirflowFailException, match=r"train_loop_config: given int in the call; accepted is a mapping"):
        decorated((5,)).execute({"ti": task_instance()})


def test_outlets_get_the_checkpoint_the_metrics_and_the_run() -> None:
    model, runs = Asset("model"), AssetAlias("runs")
    events = OutletEventAccessors()
    result = {"kind": "train", "run": {"uri": "/r/a", "name": "a"}, "metrics": {"loss": 1.0}, "reports": 3}
    announce([model, runs], events, {**result, "checkpoint": {"uri": "/r/a/checkpoint_1"}})
    kept = {"kind": "train", "run": {"uri": "/r/a", "name": "a"}, "checkpoint": {"uri": "/r/a/checkpoint_1"}}
    assert events[model].extra == {**kept, "metrics": {"loss": 1.0}}
    (event,) = events[runs].asset_alias_events
    assert event.dest_asset_key.uri == "file:///r/a/checkpoint_1"
    assert event.extra == events[model].extra


def test_a_dry_run_shows_the_request_and_submits_nothing(fake: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with DAG("d"):
        train_operator(ray_conn_id="fake", train_loop_config={"lr": 0.1}).dry_run()
    shown = capsys.readouterr().out
    assert '"lr": 0.1' in shown
    assert "d--dry_run--train" in shown
    assert TOKEN not in shown
    assert fake.jobs == {}


def test_a_clear_after_the_result_was_handed_over_is_another_generation(fake: FakeCluster, tmp_path: Path) -> None:
    def result(**changed: Any) -> Any:
        operator = train_operator(ray_conn_id="fake", deferrable=False)
        return operator.execute({"ti": task_instance(**changed)})["run"]["uri"]

    first = result()
    assert result(try_number=2) == first
    second = result(try_number=3, max_tries=2)
    assert (second, result(try_number=4, max_tries=2)) == (f"{first}.g2", f"{first}.g2")


# ---- the listener


class Row:
    """As much of Airflow's row of a task as the listener asks for."""

    _sa_instance_state = None
    dag_id, run_id, task_id, map_index = "d", "r", "train", -1

    def __init__(self, state: str):
        self.state = state


@pytest.mark.parametrize(("state", "job"), [("failed", "STOPPED"), ("success", "STOPPED"), ("up_for_retry", "RUNNING")])
def test_a_task_that_is_over_is_cancelled_from_airflows_servers(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster, state: str, job: str
) -> None:
    fake.plays = ["hang"]
    with pytest.raises(TaskDeferred) as deferred:
        train_operator(ray_conn_id="fake", limits={"heartbeat_ttl_s": 0.1}).execute({"ti": task_instance()})
    kept = deferred.value.trigger.serialize()[1]
    asked: list[dict[str, Any]] = []

    def cancel_runs_of(row: Any, **ids: Any) -> None:
        asked.append(ids)
        listener._cancel(kept["run_uri"], kept["ray_conn_id"])

    monkeypatch.setattr(listener, "_cancel_runs_of", cancel_runs_of)
    listener.on_task_instance_failed(None, Row(state), None)
    assert list(fake.jobs.values()) == [job]
    assert asked == ([] if job == "RUNNING" else [{"dag_id": "d", "run_id": "r", "task_id": "train", "map_index": -1}])


def test_a_tasks_own_process_leaves_the_listener_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_cancel_runs_of", lambda row, **ids: pytest.fail("it was asked"))
    listener.on_task_instance_failed("running", task_instance(state="failed"), None)


def test_the_listener_starts_no_local_cluster_to_cancel_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path))
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.claim(1, "http://x", "s")
    listener._cancel(rundir.uri, None)
    assert rundir.intent().cancel_through == 1
    assert not list(tmp_path.glob("head-*/state.json"))
