"""The frameworks, by name. Each module turns a TrainSpec into a Ray trainer and is imported only where it runs."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugin_core.packages import require

if TYPE_CHECKING:
    from plugin_core.specs import TrainSpec

#: Fields of a TrainSpec that belong to some frameworks only.
_OPTIONS = ("torch_config", "params", "label_column", "num_boost_round")


@dataclass(frozen=True)
class Framework:
    """`package` must import on the cluster; `extra` installs it; `options` are its own spec fields."""

    name: str
    package: str | None
    extra: str | None
    options: tuple[str, ...] = ()
    declarative: bool = False


@dataclass(frozen=True)
class TrainerInputs:
    """What every trainer of Ray takes, ready made. `wrap` is around `train_loop` already, and goes around a loop of the
    framework's own."""

    train_loop: Callable[..., Any] | None
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    train_loop_config: dict[str, Any]
    scaling_config: Any
    run_config: Any
    datasets: dict[str, Any]


_TREES = ("params", "label_column", "num_boost_round")
FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework("torch", "torch", "torch", ("torch_config",)),
        Framework("xgboost", "xgboost", "xgboost", _TREES, declarative=True),
        # no framework: plain Python workers, for scikit-learn, numpy or a framework of the user's own
        Framework("python", None, None),
    )
}


def check(spec: TrainSpec) -> None:
    """Raise ValueError where a TrainSpec does not fit its framework."""
    framework = FRAMEWORKS.get(spec.framework)
    if framework is None:
        close = difflib.get_close_matches(spec.framework, FRAMEWORKS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"framework: given {spec.framework!r}; accepted are {', '.join(FRAMEWORKS)}{hint}")
    for field in _OPTIONS:
        if getattr(spec, field) is not None and field not in framework.options:
            owners = ", ".join(f.name for f in FRAMEWORKS.values() if field in f.options)
            raise ValueError(f"{field}: given with framework {spec.framework!r}; accepted is it with {owners}")
    declared = framework.declarative and spec.params is not None
    if spec.train_loop_per_worker is None and not declared:
        alternative = " or params and label_column" if framework.declarative else ""
        raise ValueError(f"train_loop_per_worker: missing; framework {spec.framework!r} needs it{alternative}")
    if declared and spec.train_loop_per_worker is None:
        if spec.label_column is None:
            raise ValueError("label_column: missing; training declared by params needs it")
        if "train" not in spec.datasets:
            raise ValueError("datasets: 'train' is missing; training declared by params needs it")


def build_trainer(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    """The framework's Ray trainer, not yet started."""
    framework = FRAMEWORKS[spec.framework]
    if framework.package and framework.extra:
        require("framework", spec.framework, framework.package, framework.extra)
    module = importlib.import_module(f"plugin_core.frameworks.{spec.framework}")
    return module.build(spec, inputs)
