"""A flow's parameter of a spec's type: Prefect checks it by its JSON schema when a run of a deployment is created."""

from typing import Any

import pytest
from prefect import flow
from prefect.exceptions import ParameterTypeError
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import ValidationError, validate

from plugin_core import BatchInferSpec, EvaluateSpec, RayJobSpec, RetrainSpec, TrainSpec, TuneSpec
from plugin_core.specs import StepSpec

RESULT = {"kind": "train", "run": {"uri": "/r", "name": "r", "attempt": 1}, "checkpoint": {"uri": "/c"}}
TRAIN: dict[str, Any] = {
    "train_loop_per_worker": "a:b",
    "datasets": {"train": "x.csv", "valid": {"path": "y.csv"}},
    "resume_from": "/c",
    "scaling_config": {"num_workers": 2},
    "run_config": {"checkpoint_config": {"num_to_keep": 2}},
}
SPACE = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
JUDGED: dict[str, Any] = {"predictor": "a:b", "task": "classification", "dataset": "x.csv"}
GIVEN: list[tuple[type[StepSpec], dict[str, Any]]] = [
    (TrainSpec, TRAIN),
    (TuneSpec, {"train": TRAIN, "param_space": SPACE, "metric": "m", "mode": "min", "scheduler": "asha"}),
    (
        TuneSpec,
        {"train": TRAIN, "param_space": SPACE, "metric": "m", "mode": "min", "scheduler": {"type": "asha", "max_t": 5}},
    ),
    (EvaluateSpec, {**JUDGED, "checkpoint": RESULT, "compare_to": "/c", "must_beat": ["f1"]}),
    (BatchInferSpec, {"predictor": "a:b", "dataset": "x.csv", "checkpoint": RESULT}),
    (RayJobSpec, {"command": ["python", "x.py"]}),
    (RayJobSpec, {"function": "a:b", "arguments": {"day": 1}, "task_resources": {"CPU": 2}}),
    (RetrainSpec, {"model": "m", "train": TRAIN, "evaluate": {**JUDGED, "thresholds": {"f1": {"min": 0.5}}}}),
]


def checked(kind: type[StepSpec], fields: dict[str, Any]) -> None:
    def with_spec(spec: Any) -> None: ...

    with_spec.__annotations__["spec"] = kind
    schema = parameter_schema(flow(with_spec)).model_dump_for_openapi()
    validate({"spec": fields}, schema, raise_on_error=True)


@pytest.mark.parametrize(("kind", "fields"), GIVEN)
def test_what_a_spec_takes_its_schema_takes(kind: type[StepSpec], fields: dict[str, Any]) -> None:
    kind(**fields)
    checked(kind, fields)


@pytest.mark.parametrize(("kind", "fields"), GIVEN)
def test_a_typo_in_a_parameter_is_refused_when_a_run_is_created(kind: type[StepSpec], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="'limts' was unexpected"):
        checked(kind, {**fields, "limts": {}})
    if "train" in fields:
        with pytest.raises(ValidationError):
            checked(kind, {**fields, "train": {**TRAIN, "scaling_config": {"num_wrokers": 2}}})


def test_a_flow_called_with_a_typo_says_our_sentence() -> None:
    @flow
    def training(spec: TrainSpec) -> None: ...

    with pytest.raises(ParameterTypeError, match=r"scaling_config\.num_wrokers: unknown field.*did you mean num_workers\?"):
        training.validate_parameters({"spec": {**TRAIN, "scaling_config": {"num_wrokers": 2}}})
