"""Result references: small, JSON-safe, versioned."""

import json
import math
import pickle
from typing import Any, Literal

import cloudpickle
import pytest

from plugin_core import BatchInferResult, EvaluationResult, RunRef, TrainResult, TuneResult, parse_result
from plugin_core.clusters.jobs_api import ApiError
from plugin_core.errors import (
    FencedError,
    InfrastructureError,
    RayTrainWorkflowsError,
    SpecChangedError,
    SpecError,
    StepError,
    StorageError,
    UserCodeError,
    from_outcome,
)
from plugin_core.specs.json_values import json_safe
from plugin_core.specs.results import REFERENCE_BYTES, CheckpointRef, RetrainResult, StepResult

RUN = RunRef(uri="s3://bucket/prefix/run", name="run", attempt=2)


def retrained(outcome: Literal["promoted", "kept"]) -> RetrainResult:
    checkpoint = CheckpointRef(uri="s3://bucket/run/checkpoint_2")
    return RetrainResult(run=RUN, outcome=outcome, reason="accuracy", champion=2, checkpoint=checkpoint)


@pytest.mark.parametrize(
    "result",
    [
        TrainResult(run=RUN, metrics={"loss": 0.5}, checkpoint="s3://bucket/prefix/run/checkpoint_1", reports=3),
        EvaluationResult(run=RUN, metrics={"accuracy": 0.9}, passed=False, failed={"accuracy": "0.9 < min 0.95"}),
        BatchInferResult(run=RUN, output="s3://bucket/out", rows=10),
    ],
)
def test_a_result_survives_json(result: Any) -> None:
    assert parse_result(json.loads(result.model_dump_json())) == result


@pytest.mark.parametrize(
    ("result", "made"),
    [
        (TrainResult(run=RUN, checkpoint="s3://bucket/run/checkpoint_1"), "s3://bucket/run/checkpoint_1"),
        (TrainResult(run=RUN), None),
        (EvaluationResult(run=RUN, passed=True, checkpoint="s3://bucket/run/checkpoint_1"), None),
        (BatchInferResult(run=RUN, output="s3://bucket/out", rows=10), "s3://bucket/out"),
        (retrained("promoted"), "s3://bucket/run/checkpoint_2"),
        (retrained("kept"), None),
    ],
)
def test_a_result_says_what_its_step_made(result: StepResult, made: str | None) -> None:
    assert result.made == made


def test_nan_and_inf_become_null() -> None:
    result = TrainResult(run=RUN, metrics={"a": math.nan, "b": [math.inf, 1.0], "c": {"d": -math.inf}})
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["metrics"] == {
        "a": None,
        "b": [None, 1.0],
        "c": {"d": None},
    }


def test_a_reference_is_at_most_two_kilobytes_and_says_what_it_left_out() -> None:
    result = TrainResult(run=RUN, metrics={f"metric_{n}": n / 7 for n in range(5000)})
    reference = result.reference()
    assert len(json.dumps(reference.to_json())) <= REFERENCE_BYTES
    assert reference.truncated
    assert reference.metrics["metric_0"] == 0


def test_the_best_trials_result_has_its_metrics_and_they_are_kept_once() -> None:
    metrics = {f"metric_{n}": n / 7 for n in range(50)}
    best = TrainResult(run=RUN, metrics=metrics)
    result = TuneResult(run=RUN, metrics=metrics, best=best, best_config={}, trials={"finished": 1}, table="/trials.json")
    data = result.to_json()
    assert "metrics" not in data["best"]
    assert parse_result(data) == result
    assert result.best.metrics == metrics
    reference = parse_result(result.reference().to_json())
    assert reference.best.metrics == reference.metrics != {}


def test_a_small_result_is_its_own_reference() -> None:
    result = TrainResult(run=RUN, metrics={"loss": 1})
    assert result.reference() is result


def test_a_result_newer_than_the_code_is_refused() -> None:
    data = {**TrainResult(run=RUN).to_json(), "schema_version": 99}
    with pytest.raises(SpecError, match="schema_version: got 99; expected at most 1: upgrade ray-train-workflows"):
        parse_result(data)


def test_a_value_that_is_not_a_result_is_refused() -> None:
    with pytest.raises(SpecError, match="result: got"):
        parse_result({"kind": "nonsense"})


def test_numpy_and_torch_values_become_plain_numbers() -> None:
    import numpy as np
    import torch

    values = {
        "f32": np.float32(0.5),
        "i64": np.int64(3),
        "bool": np.bool_(True),
        "nan": np.float32("nan"),
        "array": np.arange(3),
        "scalar tensor": torch.tensor(2.0, requires_grad=True),
        "tensor": torch.ones(2, dtype=torch.int32),
        "nan tensor": torch.tensor(float("nan")),
        "nested": {"x": (np.float16(1.0), {1})},
        3: "a key that is not a string",
        "object": object,
    }
    safe = json_safe(values)
    assert json.loads(json.dumps(safe, allow_nan=False)) == safe
    assert safe["f32"] == 0.5
    assert safe["nan"] is None
    assert safe["array"] == [0, 1, 2]
    assert safe["scalar tensor"] == 2.0
    assert safe["nan tensor"] is None
    assert safe["nested"] == {"x": [1.0, [1]]}
    assert safe["3"] == "a key that is not a string"


def all_errors(cls: type[RayTrainWorkflowsError] = RayTrainWorkflowsError) -> list[type[RayTrainWorkflowsError]]:
    found = [cls, *(each for sub in cls.__subclasses__() for each in all_errors(sub))]
    return [cls for cls in found if cls.__module__ == "plugin_core.errors"]


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
@pytest.mark.parametrize("cls", all_errors())
def test_every_error_has_a_message_and_details_which_survive_pickling(cls: type[Any], pickler: Any) -> None:
    details = {} if cls is SpecChangedError else {"details": "trace"}
    for error in (cls("why", **details), cls("why")):
        again = pickler.loads(pickler.dumps(error))
        assert type(again) is cls
        assert (again.message, again.details, str(again)) == ("why", error.details, "why")
        assert vars(again) == vars(error)
    assert (cls("why").details, cls("").message) == ("", cls.__name__)


def test_what_a_spec_error_adds_survives_pickling() -> None:
    changed, spec = SpecChangedError("changed", ("a",), code_alone=True), SpecError("x; y")
    spec.sentences = ("x", "y")
    again = pickle.loads(pickle.dumps(changed))
    assert (again.message, again.fields, again.code_alone) == ("changed", ("a",), True)
    assert pickle.loads(pickle.dumps(spec)).sentences == ("x", "y")


def test_an_answer_of_the_jobs_api_survives_pickling() -> None:
    error = ApiError(500, "first\nlast", "http://head:8265/api/jobs/")
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.status, again.text) == (error.message, 500, "first\nlast")
    assert error.message == "cluster: http://head:8265/api/jobs/ returned 500: last"


def test_rays_copy_of_an_error_has_its_message_and_details() -> None:
    from ray.exceptions import RayTaskError

    for cls in (UserCodeError, StorageError):
        copy = RayTaskError("f", "Traceback", cls("why", "trace")).as_instanceof_cause()
        assert isinstance(copy, cls)
        assert (copy.message, copy.details) == ("why", "trace")


def test_only_infrastructure_errors_are_retryable() -> None:
    retryable = {cls.__name__ for cls in all_errors() if cls.retryable}
    assert retryable == {
        "ClusterQueuedError",
        "ClusterUnreachableError",
        "StorageError",
        "InfrastructureError",
        "HangError",
        "DamagedCheckpointError",
        "StorageFullError",
        "LeaseHeldError",
        "RestartError",
    }


@pytest.mark.parametrize("cls", [UserCodeError, InfrastructureError, FencedError, SpecError])
def test_an_outcome_becomes_its_error_again(cls: type[StepError | SpecError]) -> None:
    error = from_outcome(cls.outcome, "why", "trace")
    assert type(error) is cls
    assert error.details == "trace"
