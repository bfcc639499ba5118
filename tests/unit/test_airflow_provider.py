"""The Airflow provider without a database: its info, operators and decorator."""

import importlib
import importlib.metadata
import inspect
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow")

import jsonschema
from airflow.providers.common.compat.sdk import (
    DAG,
    AirflowFailException,
    Asset,
    AssetAlias,
)
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_provider import listener
from airflow_provider.assets import announce
from airflow_provider.decorators import RayTrainDecoratedOperator, ray_train_task
from airflow_provider.get_provider_info import get_provider_info
from airflow_provider.hooks import RayJobsHook
from airflow_provider.operators import (
    PromoteModelOperator,
    RayBatchInferOperator,
    RayEvaluateOperator,
    RayJobOperator,
    RayRetrainOperator,
    RayStepOperator,
    RayTrainOperator,
    RayTuneOperator,
)
from plugin_core import CheckpointRef, Evaluation, TrainSpec
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError
from plugin_core.registry.base import ModelVersion
from plugin_core.specs import StepSpec
from tests.support.airflow_tasks import TOKEN, loop, task_instance, train_operator
from tests.support.airflow_tasks import fake as fake


class Predictor:
    """With an attribute that Airflow mistakes for one of its own lazy values."""

    def resolve(self) -> None:
        raise NotImplementedError


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
    "operator",
    [RayTrainOperator, RayTuneOperator, RayEvaluateOperator, RayBatchInferOperator, RayRetrainOperator, RayJobOperator],
)
def test_an_operator_takes_the_fields_of_its_spec(operator: type[RayStepOperator]) -> None:
    own = {name for name in inspect.signature(operator.__init__).parameters if name not in ("self", "kwargs")}
    shared = set(inspect.signature(RayStepOperator.__init__).parameters) & set(StepSpec.model_fields)
    taken = {{"model_params": "params", "ray_resources": "resources"}.get(name, name) for name in own | shared}
    assert taken == set(operator.spec_class.model_fields) - {"kind"}


def test_a_search_and_a_retraining_take_specs_and_promote_the_next_step(fake: FakeCluster, tmp_path: Path) -> None:
    train = TrainSpec(framework="python", train_loop_per_worker=loop, run_config={"storage_path": str(tmp_path)})
    space = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
    search = RayTuneOperator(task_id="tune", train=train, param_space=space, metric="loss", mode="min", ray_conn_id="fake")
    search.deferrable = False
    found = search.execute({"ti": task_instance(task_id="tune")})
    assert (found["kind"], found["metrics"]) == ("tune", {"loss": 0.5})
    for given in (str(found), {"search": str(found)}, found):
        more = {"train": train, "param_space": space, "metric": "loss", "mode": "min", "resume_from": given}
        operator = RayTuneOperator(task_id="more", spec={"kind": "tune", **more}, ray_conn_id="fake")
        operator.deferrable = False
        assert operator.execute({"ti": task_instance(task_id="more")})["kind"] == "tune"
    with pytest.raises(SpecError, match=r"resume_from\.trials: got 'most'; expected 'none', 'best' or 'all'"):
        RayTuneOperator(task_id="wrong", spec={**more, "resume_from": {"search": "/r", "trials": "most"}})
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
    with pytest.raises(AirflowFailException, match="SpecError: name: got 'm/n'"):
        refused.execute({"ti": task_instance(task_id="promote")})


def test_a_cleared_old_dag_run_keeps_the_champion_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    champion = ModelVersion(
        name="m", version=2, checkpoint="/c", kept="the champion of m stays version 2: the new one is old"
    )
    given: dict[str, Any] = {}
    monkeypatch.setattr("airflow_provider.promote.promote", lambda *args, **options: given.update(options) or champion)
    operator = PromoteModelOperator(task_id="promote", result="/x", name="m", allow_older=True)
    assert operator.execute({"ti": task_instance(task_id="promote")})["version"] == 2
    assert champion.kept in capsys.readouterr().out
    assert (given["allow_older"], given["force"]) == (True, False)


def test_a_spec_together_with_fields_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec: got together with framework, train_loop_per_worker; expected one"):
        train_operator(spec={"framework": "torch"})


def test_a_wrong_field_is_refused_before_anything_is_submitted_and_not_retried(fake: FakeCluster) -> None:
    operator = train_operator(ray_conn_id="fake", scaling_config={"num_workers": "{{ params.workers }}"})
    operator.spec["scaling_config"]["num_workers"] = 0  # as rendered
    with pytest.raises(AirflowFailException, match=r"SpecError: scaling_config.*num_workers: got 0"):
        operator.execute({"ti": task_instance()})
    assert fake.jobs == {}


def test_a_spec_of_another_kind_is_refused() -> None:
    with pytest.raises(SpecError, match="kind: got 'train'; expected EvaluateSpec"):
        RayEvaluateOperator(task_id="evaluate", spec=TrainSpec(train_loop_per_worker=loop))


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
    """Airflow considers the DAG a new version whenever its serialised form differs."""
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


def test_the_scheduled_retrainings_of_the_docs_are_a_dag_and_a_flow() -> None:
    text = (Path(__file__).parents[2] / "docs" / "retraining.md").read_text()
    in_airflow, in_prefect = re.findall(r"```py\n(.*?)```", text, re.DOTALL)
    dag, flow = ({"__name__": "page"} for _ in range(2))
    exec(compile(in_airflow.replace("\nweekly()\n", "\nmade = weekly()\n"), "retraining.md", "exec"), dag)
    exec(compile(in_prefect, "retraining.md", "exec"), flow)
    operator = dag["made"].get_task("retrain")
    fields = flow["spec"].model_dump(exclude_unset=True, mode="json")
    assert {name: fields[name] for name in ("model", "registry")} == {
        name: operator.spec[name] for name in ("model", "registry")
    }
    assert flow["weekly"].name == "weekly"
    assert flow["weekly"].retries == operator.retries == 3


def test_the_first_examples_of_the_docs_do_not_keep_every_checkpoint() -> None:
    docs = Path(__file__).parents[2] / "docs"
    for page, kind in (("airflow.md", "python"), ("first-step.md", "yaml")):
        text = (docs / page).read_text()
        first = next(block for block in re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) if "num_workers" in block)
        assert re.search(r"num_to_keep\"?: 2", first), page


# ---- decorator, outlets, dry run, clear


def decorated(call: tuple[Any, ...] = (), function: Any = loop, **fields: Any) -> RayTrainDecoratedOperator:
    with DAG("d"):
        made = ray_train_task(function, framework="python", ray_conn_id="fake", **fields)(*call)
    operator = made.operator
    assert isinstance(operator, RayTrainDecoratedOperator)
    return operator


def test_a_decorated_function_is_the_loop_and_its_arguments_are_the_config(fake: FakeCluster) -> None:
    operator = decorated(({"epochs": 5, "day": "{{ ds }}"},), scaling_config={"num_workers": 2})
    operator.render_template_fields({"ds": "2026-01-01"})
    spec = operator.build_spec(task_instance(), RayJobsHook("fake").get_place())
    assert isinstance(spec, TrainSpec)
    assert spec.train_loop_per_worker is loop
    assert spec.train_loop_config == {"epochs": 5, "day": "2026-01-01"}
    assert spec.scaling_config.num_workers == 2


def test_a_decorated_functions_config_may_be_in_the_decorator_or_its_default(fake: FakeCluster) -> None:
    def with_default(config: dict[str, Any] = {"epochs": 2}) -> None:  # noqa: B006
        raise NotImplementedError

    def bare() -> None:
        raise NotImplementedError

    def config(operator: RayTrainDecoratedOperator) -> Any:
        return operator.build_spec(task_instance(), RayJobsHook("fake").get_place()).to_json()["train_loop_config"]

    assert config(decorated(train_loop_config={"epochs": 3})) == {"epochs": 3}
    assert config(decorated(function=with_default)) == {"epochs": 2}
    assert config(decorated()) == config(decorated(function=bare)) == {}


def test_arguments_that_a_decorated_function_cannot_use_are_refused(fake: FakeCluster) -> None:
    with pytest.raises(SpecError, match=r"train_loop_config: got it in @task\.ray_train and in the call; expected one"):
        decorated(({},), train_loop_config={"epochs": 3})
    with pytest.raises(SpecError, match=r"spec: got one in @task\.ray_train"):
        decorated(spec={"framework": "torch"})
    with pytest.raises(AirflowFailException, match=r"train_loop_config: got int in the call; expected a mapping"):
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


def test_a_clear_after_the_result_was_delivered_starts_another_generation(fake: FakeCluster, tmp_path: Path) -> None:
    def result(**changed: Any) -> Any:
        operator = train_operator(ray_conn_id="fake", deferrable=False)
        return operator.execute({"ti": task_instance(**changed)})["run"]["uri"]

    first = result()
    assert result(try_number=2) == first
    second = result(try_number=3, max_tries=2)
    assert (second, result(try_number=4, max_tries=2)) == (f"{first}.g2", f"{first}.g2")
