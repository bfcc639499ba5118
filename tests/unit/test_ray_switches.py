"""The fields for Ray Train's less common switches: what they refuse, and what is made of them."""

import functools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyarrow.fs import (
    AzureFileSystem,
    FSSpecHandler,
    GcsFileSystem,
    LocalFileSystem,
    PyFileSystem,
    S3FileSystem,
    SubTreeFileSystem,
)
from ray.train import DataConfig, UserCallback

from plugin_core.driver.train.data_config import data_config
from plugin_core.driver.train.user_callbacks import Guarded, users_callbacks
from plugin_core.driver.train.validation import validation_config
from plugin_core.errors import SpecError
from plugin_core.runs import spec_record
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.specs import RunConfig, TrainSpec, parse_spec
from plugin_core.specs.parts import spec_functions
from plugin_core.supervisor.story import is_bad, phase_in_words

LOOP = "devtools.steps:counting_loop"
RAY = {"framework": "python", "train_loop_per_worker": LOOP}


class Notify(UserCallback):
    """A callback as a user would write it."""

    def __init__(self, place: str = "here"):
        self.place = place
        self.seen: list[Any] = []

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.seen.append(metrics)
        raise ConnectionError(f"no route to {self.place}")


def validate(checkpoint: Any, share: float = 1.0) -> dict[str, Any]:
    return {"accuracy": share}


def my_data_config() -> DataConfig:
    return DataConfig(enable_shard_locality=False)


def context(tmp_path: Path, **fields: Any) -> StepContext:
    run_config = RunConfig(name="run", storage_path=str(tmp_path), **fields.pop("run_config", {}))
    spec = TrainSpec(**{**RAY, "run_config": run_config, **fields})
    return StepContext(spec, RunDir.of(spec), 1, {}, lambda phase: None)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"validation": {}}, "validation.fn: missing; ValidationConfig needs it"),
        ({"validation": {"fn": "m:f", "timeout_s": 0}}, "validation.timeout_s: got 0; expected a value greater than 0"),
        ({"validation": {"fn": "m:f", "resources": {"CPU": -1}}}, "validation.resources.CPU: got -1"),
        ({"run_config": {"callbacks": [3]}}, "run_config.callbacks.0: got 3; expected a callable"),
        ({"run_config": {"callbacks": "m:f"}}, "run_config.callbacks: got 'm:f'; expected a list"),
        ({"framework_callbacks": ["m:f"]}, "framework_callbacks: got it with framework 'python'; only valid with"),
        (
            {"framework": "xgboost", "framework_callbacks": ["m:f"]},
            "framework_callbacks: got it without params; expected the train loop to pass its own callbacks",
        ),
        ({"data_config": "m:f"}, "data_config: got it without datasets"),
        (
            {"data_config": "m:f", "datasets": {"train": {"path": "/x.csv", "shard": False}}},
            "datasets.train.shard: got it with data_config; expected your DataConfig to decide it",
        ),
        ({"datasets": {"train": {"path": "/x.csv", "reshuffle": True}}}, "datasets.train.reshuffle: got True without"),
        (
            {"datasets": {"train": {"path": "/x.csv", "resource_limits": {"cpu": 1}}}},
            "datasets.train.resource_limits: got 'cpu'; expected CPU, GPU, object_store_memory, memory",
        ),
        ({"deterministic": True, "seed": 1}, "deterministic: got True with framework 'python'; expected one on PyTorch"),
        ({"framework": "torch", "deterministic": True}, "deterministic: got True without seed; expected a seed"),
        (
            {"framework": "torch", "torch_config": {"lighthouse": {"min_replicas": 1}}},
            "torch_config.lighthouse: got it without fault_tolerance",
        ),
        (
            {"run_config": {"failure_config": {"nccl_hang": {"action": "pray"}}}},
            "run_config.failure_config.nccl_hang.action: got 'pray'; expected 'observe' or 'fail'",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        TrainSpec(**{**RAY, **fields})
    assert sentence in str(refused.value)


def test_functions_in_lists_and_nested_fields_travel_with_the_step() -> None:
    notify = Notify()
    spec = TrainSpec(
        **{**RAY, "validation": validate},
        datasets={"train": {"path": "/x.csv"}},
        data_config=my_data_config,
        run_config=RunConfig(callbacks=[notify, Notify, "package.module:Callback"]),
    )
    by_value, references = spec_functions(spec)
    assert {name: value for name, value in by_value.items() if name != "run_config.callbacks.0"} == {
        "validation.fn": validate,
        "data_config": my_data_config,
        "run_config.callbacks.1": Notify,
    }
    assert by_value["run_config.callbacks.0"]() is notify
    assert references == {"train_loop_per_worker": LOOP, "run_config.callbacks.2": "package.module:Callback"}
    assert parse_spec(spec.to_json()).to_json() == spec.to_json()


def test_a_callback_with_other_values_is_a_change_of_the_spec() -> None:
    def record(place: str) -> dict[str, Any]:
        return spec_record.make_record(TrainSpec(**RAY, run_config=RunConfig(callbacks=[Notify(place)])))[0]

    assert spec_record.changed_fields(record("here"), record("here")) == []
    assert spec_record.changed_fields(record("here"), record("there")) == ["run_config.callbacks"]
    assert spec_record.code_alone(record("here"), record("there"))


def test_a_validation_holds_its_resources_beside_the_workers() -> None:
    spec = TrainSpec(**RAY, validation={"fn": validate, "resources": {"CPU": 2, "GPU": 0.5}})
    assert spec.need() == {"CPU": 3.0, "GPU": 0.5}


def test_a_validation_becomes_rays(tmp_path: Path) -> None:
    given = {"fn": validate, "fn_kwargs": {"share": 0.5}, "timeout_s": 9, "resources": {"CPU": 0, "GPU": 1, "tape": 2}}
    made = context(tmp_path, validation=given)
    assert isinstance(made.spec, TrainSpec)
    theirs = validation_config(made, made.spec)
    assert theirs.task_config.fn_kwargs == {"share": 0.5}
    assert theirs.task_config.timeout_s == 9
    assert theirs.ray_remote_kwargs == {"num_cpus": 0, "num_gpus": 1, "resources": {"tape": 2}, "max_retries": 3}


def test_what_is_no_callback_or_data_config_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"run_config.callbacks.0: got a dict; expected a ray.train.UserCallback"):
        users_callbacks(context(tmp_path, run_config={"callbacks": [lambda: {}]}), print)
    made = context(tmp_path, data_config=lambda: {}, datasets={"train": {"path": "/x.csv"}})
    assert isinstance(made.spec, TrainSpec)
    with pytest.raises(SpecError, match=r"data_config: got a function that returns dict"):
        data_config(made, made.spec)


def test_the_exception_of_a_callback_is_one_warning() -> None:
    warnings: list[str] = []
    guarded = Guarded(Notify(), "run_config.callbacks.0", warnings.append)
    for step in range(3):
        guarded.after_report(run_context=None, metrics=[{"step": step}], checkpoint=None)
    guarded.after_exception(run_context=None, worker_exceptions={})
    assert warnings == [
        "run_config.callbacks.0: Notify.after_report raised ConnectionError: no route to here; the training went on"
    ]


def test_datasets_are_handed_out_by_their_fields(tmp_path: Path) -> None:
    def made(**datasets: Any) -> Any:
        its = context(tmp_path, datasets={name: {"path": f"/{name}.csv", **given} for name, given in datasets.items()})
        assert isinstance(its.spec, TrainSpec)
        return data_config(its, its.spec)

    assert made(train={}) is None
    config = made(train={"preserve_order": True, "resource_limits": {"CPU": 2.0}}, valid={"shard": False}, other={})
    assert config._datasets_to_split == ["train", "other"]
    options = config._get_user_execution_options("train")
    assert options.preserve_order
    assert options.resource_limits.cpu == 2
    assert config._get_user_execution_options("valid") is None
    assert made(train={"shuffle_seed": 1})._get_user_execution_options("train").preserve_order
    labelled = made(train={"label_selector": {"pool": "data"}})._get_user_execution_options("train")
    assert labelled.label_selector == {"pool": "data"}


# ---- what is kept of a validation

REPORT = {"attempt": 1, "time": 1.0, "metrics": {"loss": 1.0}}
VALIDATED = {"phase": "validated", "checkpoint": "c1", "index": 1, "status": "validated", "metrics": {"accuracy": 0.9}}


def test_a_checkpoint_has_the_metrics_of_its_validation() -> None:
    reported = {**REPORT, "report": 1, "checkpoint": "c1", "validation": {}}
    history = History.of([reported], ["c1"], "accuracy")
    assert history.unranked == 1
    history.add(VALIDATED)
    assert history.unranked == 0
    assert history.checkpoints["c1"]["metrics"] == {"loss": 1.0, "accuracy": 0.9} == history.metrics
    assert "validation" not in history.checkpoints["c1"], "it has ended"
    assert history.reports == 1
    assert history.warnings == []


def test_a_validation_without_metrics_is_a_warning() -> None:
    history = History.of([{**REPORT, "report": n, "checkpoint": f"c{n}"} for n in (1, 2)])
    history.add({**VALIDATED, "status": "failed", "metrics": {}})
    history.add({**VALIDATED, "checkpoint": "c2", "status": "timed_out", "metrics": {}})
    assert history.warnings == [
        "validation: that of c1 failed; its error is in the job's log",
        "validation: that of c2 took longer than validation.timeout_s",
    ]


def test_the_log_tells_of_a_validation() -> None:
    assert phase_in_words(VALIDATED) == "validated c1: accuracy=0.9"
    failed = {**VALIDATED, "status": "failed", "metrics": {}}
    assert phase_in_words(failed) == "the validation of c1 failed"
    assert [is_bad(VALIDATED), is_bad(failed), is_bad({"phase": "warning", "warning": "x"})] == [False, True, True]
    assert json.loads(json.dumps(VALIDATED)) == VALIDATED


def test_a_partial_is_a_function_too() -> None:
    spec = TrainSpec(**RAY, validation=functools.partial(validate, share=0.25))
    assert list(spec_functions(spec)[0]) == ["validation.fn"]


# ---- a filesystem object as storage

NEVER = datetime(2100, 1, 1, tzinfo=UTC)


def of_fsspec(protocol: str, **options: Any) -> Any:
    return PyFileSystem(FSSpecHandler(fsspec.filesystem(protocol, **options)))


@pytest.mark.parametrize(
    ("filesystem", "path", "uri"),
    [
        (LocalFileSystem(), "/runs", "/runs"),
        (SubTreeFileSystem("/data", LocalFileSystem()), "runs", "/data/runs"),
        (
            S3FileSystem(region="eu-west-1", endpoint_override="minio:9000", scheme="http"),
            "bucket/runs",
            "s3://bucket/runs?endpoint_override=minio%3A9000&region=eu-west-1&scheme=http",
        ),
        (
            SubTreeFileSystem("bucket", S3FileSystem(region="us-east-1", allow_bucket_creation=True)),
            "runs",
            "s3://bucket/runs?allow_bucket_creation=true&region=us-east-1",
        ),
        (
            GcsFileSystem(endpoint_override="gcs:4443", scheme="http", project_id="ours"),
            "bucket/runs",
            "gs://bucket/runs?endpoint_url=http%3A%2F%2Fgcs%3A4443&project=ours",
        ),
        (AzureFileSystem("ours"), "box/runs", "abfs://box/runs?account_name=ours"),
        (
            of_fsspec("s3", endpoint_url="http://minio:9000"),
            "b/runs",
            "s3fs://b/runs?endpoint_url=http%3A%2F%2Fminio%3A9000",
        ),
    ],
)
def test_a_filesystem_is_kept_as_its_uri(filesystem: Any, path: str, uri: str) -> None:
    config = RunConfig(name="run", storage_path=path, storage_filesystem=filesystem)
    assert config.storage_path == uri
    assert "storage_filesystem" not in config.model_dump()


@pytest.mark.parametrize(
    ("filesystem", "path", "sentence"),
    [
        (
            S3FileSystem(access_key="AKIA-canary", secret_key="canary", region="us-east-1"),
            "bucket/runs",
            "storage_filesystem: got a filesystem with its own access_key; expected a URI as storage_path, and credentials"
            " from the environment of the cluster",
        ),
        (of_fsspec("s3", key="canary"), "bucket/runs", "storage_filesystem: got a filesystem with its own key"),
        (S3FileSystem(region="us-east-1", anonymous=True), "b/runs", "anonymous, which a s3:// URI cannot say"),
        (GcsFileSystem(anonymous=True), "bucket/runs", "anonymous, which a gs:// URI cannot say"),
        (GcsFileSystem(access_token="canary", credential_token_expiration=NEVER), "b/runs", "with its own access_token"),
        (AzureFileSystem("ours", account_key="Y2FuYXJ5"), "c/runs", "got a filesystem with its own account_key"),
        (of_fsspec("memory"), "runs", "got fsspec's 'memory'; expected one of"),
        ("s3", "runs", "storage_filesystem: got a str; expected a pyarrow.fs.FileSystem"),
        (LocalFileSystem(), "s3://bucket/runs", "storage_path: got 's3://bucket/runs' with storage_filesystem"),
        (LocalFileSystem(), None, "storage_path: got None with storage_filesystem; expected a path on that filesystem"),
    ],
)
def test_a_filesystem_that_no_uri_describes_is_refused(filesystem: Any, path: str, sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        RunConfig(name="run", storage_path=path, storage_filesystem=filesystem)
    assert sentence in str(refused.value)
    assert "canary" not in str(refused.value)
