"""Whether a TrainSpec fits its framework, told before anything is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plugin_core.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from plugin_core.specs import TrainSpec

#: DeepSpeed's stages of ZeRO.
ZERO_STAGES = (0, 1, 2, 3)
#: Parameters of XGBoost and LightGBM that are fields of the spec, by which a killed training counts its rounds.
_FIELDS_OF_PARAMS = {
    **dict.fromkeys(("num_boost_round", "num_iterations", "n_estimators"), "num_boost_round"),
    **dict.fromkeys(("early_stopping_round", "early_stopping_rounds"), "early_stopping_rounds"),
}


def check(spec: TrainSpec) -> None:
    """Raise ValueError where a TrainSpec does not fit its framework."""
    framework = FRAMEWORKS[spec.framework]
    for field in sorted({option for known in FRAMEWORKS.values() for option in known.options}):
        if getattr(spec, field) is not None and field not in framework.options:
            owners = ", ".join(known.name for known in FRAMEWORKS.values() if field in known.options)
            raise ValueError(f"{field}: given with framework {spec.framework!r}; accepted is it with {owners}")
    declared = framework.declarative and spec.params is not None
    if spec.train_loop_per_worker is None and not declared:
        alternative = " or params and label_column" if framework.declarative else ""
        raise ValueError(f"train_loop_per_worker: missing; framework {spec.framework!r} needs it{alternative}")
    if declared and spec.train_loop_per_worker is None:
        _check_declared(spec)
    if spec.deepspeed_config is not None:
        _check_deepspeed(spec, spec.deepspeed_config)


def _check_declared(spec: TrainSpec) -> None:
    if spec.label_column is None:
        raise ValueError("label_column: missing; training declared by params needs it")
    if "train" not in spec.datasets:
        raise ValueError("datasets: 'train' is missing; training declared by params needs it")
    for alias, field in _FIELDS_OF_PARAMS.items():
        if alias in (spec.params or {}):
            raise ValueError(f"params.{alias}: given; accepted is it as the field {field} of the spec")
    if spec.early_stopping_rounds is not None and len(spec.datasets) < 2:
        raise ValueError(
            f"early_stopping_rounds: given {spec.early_stopping_rounds} without a dataset beside 'train'; accepted is it"
            " with one to evaluate on"
        )


def _check_deepspeed(spec: TrainSpec, config: dict[str, Any]) -> None:
    if "deepspeed_config" in spec.train_loop_config:
        raise ValueError("deepspeed_config: given in train_loop_config too; accepted is it in one place")
    stage = _section(config, "zero_optimization").get("stage", 0)
    if stage not in ZERO_STAGES:
        raise ValueError(f"deepspeed_config.zero_optimization.stage: given {stage!r}; accepted are 0, 1, 2, 3")
    if all(_section(config, name).get("enabled") is True for name in ("fp16", "bf16")):
        raise ValueError("deepspeed_config: given fp16 and bf16, both enabled; accepted is one of them")
    low, high = spec.scaling_config.worker_range
    sizes = [config.get(name) for name in ("train_batch_size", "train_micro_batch_size_per_gpu")]
    steps = config.get("gradient_accumulation_steps", 1)
    if low == high and all(isinstance(size, int) for size in (*sizes, steps)) and sizes[0] != sizes[1] * steps * low:
        raise ValueError(
            f"deepspeed_config.train_batch_size: given {sizes[0]}; accepted is {sizes[1] * steps * low}, which is"
            f" train_micro_batch_size_per_gpu {sizes[1]} × gradient_accumulation_steps {steps} × {low} workers"
        )


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name, {})
    if not isinstance(section, dict):
        raise ValueError(f"deepspeed_config.{name}: given {section!r}; accepted is a mapping")
    return section
