"""The kinds of steps. Each has one declaration, from which everything that depends on the kind derives.

To add a kind, write a spec and a result with the same `kind` and a function that runs it, and `declare(StepKind(...))`. A
package of your own, installed on orchestrator and cluster, names the module that does so as an entry point:

    [project.entry-points."raytrain.step_kinds"]
    my_kind = "my_package.my_step"
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs import outcomes
from plugin_core.specs.batch_infer import BatchInferSpec
from plugin_core.specs.evaluate import EvaluateSpec
from plugin_core.specs.function_field import REFERENCE
from plugin_core.specs.ray_job import RayJobSpec
from plugin_core.specs.results import (
    BatchInferResult,
    EvaluationResult,
    RayJobResult,
    RetrainResult,
    StepResult,
    TrainResult,
    TuneResult,
)
from plugin_core.specs.retrain import RetrainSpec
from plugin_core.specs.step import StepSpec
from plugin_core.specs.train import TrainSpec
from plugin_core.specs.tune import TuneSpec
from plugin_core.storage.plugins import STEP_KINDS, names, plugin


@dataclass(frozen=True)
class StepKind:
    """The declaration of a kind of step.

    `spec`, `result`: models whose `kind` has the same default. The spec defines what a step needs: functions and
    datasets by the types of its fields, processes by `bundles`. `run`: "module:function", which takes a `StepContext`
    and returns the result; imported only on the cluster. `reports`: whether it reports while it runs, so that trackers
    get its metrics from the journal; otherwise from the result. `admits_itself`: whether `run` itself waits for the
    step's resources, because it waits for something else first; otherwise they are available when it is called.
    `words`: takes the spec and a result and returns the lines that tell a person how the step ended. `check`:
    "module:function", called before the submit with the spec, whether the step runs on this machine, and the newest
    `RunDir` of its name if that is known; raises SpecError. `training`: "module:function" for a kind that trains through
    other runs: takes the step's `RunDir` and returns the one whose journal has the reports; raises SpecError. Raises
    TypeError if the declaration is incomplete.
    """

    spec: type[StepSpec]
    result: type[StepResult]
    run: str
    reports: bool = False
    admits_itself: bool = False
    words: Callable[[Any, Any], list[str]] = outcomes.any_step
    check: str | None = None
    training: str | None = None

    def __post_init__(self) -> None:
        names = [
            model.model_fields["kind"].default if "kind" in model.model_fields else None
            for model in (self.spec, self.result)
        ]
        if not isinstance(names[0], str) or names[0] != names[1]:
            raise TypeError(
                f"StepKind: got kind {names[0]!r} in {self.spec.__name__} and {names[1]!r} in"
                f" {self.result.__name__}; expected the same default in both"
            )
        if self.spec.bundles is StepSpec.bundles:
            raise TypeError(f"{self.spec.__name__}.bundles: missing; expected a method that returns the step's processes")
        for field, reference in (("run", self.run), ("check", self.check), ("training", self.training)):
            if reference is not None and not REFERENCE.match(reference):
                raise TypeError(f"StepKind.{field}: got {reference!r}; expected 'package.module:function'")
        required = [name for name, field in self.result.model_fields.items() if field.is_required() and name != "run"]
        if required and self.result.played.__func__ is StepResult.played.__func__:  # type: ignore[attr-defined]
            raise TypeError(
                f"{self.result.__name__}.played: missing; expected a class method that fills {', '.join(required)}"
            )

    @property
    def name(self) -> str:
        return str(self.spec.model_fields["kind"].default)


_KINDS: dict[str, StepKind] = {}


def declare(kind: StepKind) -> StepKind:
    """Register a kind of step in this process. Raises ValueError if another kind has its name."""
    if _KINDS.setdefault(kind.name, kind) != kind:
        raise ValueError(f"kind: {kind.name!r} is declared twice, by {_KINDS[kind.name].spec} and by {kind.spec}")
    return kind


def step_kind(name: Any) -> StepKind:
    """The declaration of a kind. Raises SpecError if there is none."""
    if isinstance(name, str) and name not in _KINDS:
        plugin(STEP_KINDS, name, "kind")
    if not isinstance(name, str) or name not in _KINDS:
        known = [*_KINDS, *(added for added in names(STEP_KINDS) if added not in _KINDS)]
        raise SpecError(f"kind: got {shown(name)}; expected one of {', '.join(known)}")
    return _KINDS[name]


declare(StepKind(TrainSpec, TrainResult, "plugin_core.driver.train.step:run", reports=True, words=outcomes.train))
declare(
    StepKind(
        TuneSpec,
        TuneResult,
        "plugin_core.driver.tune.step:run",
        reports=True,
        words=outcomes.tune,
        check="plugin_core.supervisor.kind_checks:tune",
        training="plugin_core.runs.trainings:best_trial",
    )
)
declare(StepKind(EvaluateSpec, EvaluationResult, "plugin_core.driver.evaluate.step:run", words=outcomes.evaluate))
declare(
    StepKind(
        BatchInferSpec,
        BatchInferResult,
        "plugin_core.driver.batch_infer:run",
        words=outcomes.batch_infer,
        check="plugin_core.supervisor.kind_checks:batch_infer",
    )
)
declare(
    StepKind(
        RetrainSpec,
        RetrainResult,
        "plugin_core.driver.retrain:run",
        reports=True,
        admits_itself=True,
        words=outcomes.retrain,
        training="plugin_core.runs.trainings:of_retraining",
    )
)
declare(StepKind(RayJobSpec, RayJobResult, "plugin_core.driver.ray_job.step:run", words=outcomes.ray_job))
