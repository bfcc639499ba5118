"""TODO"""

from __future__ import annotations

from typing import Any

from plugin_core.errors import SpecError
from plugin_core.specs import functions
from plugin_core.specs.batch_infer import BatchInferSpec
from plugin_core.specs.common import DatasetConfig, StepSpec
from plugin_core.specs.evaluate import Evaluation
from plugin_core.specs.train import TrainSpec

#: The fields of specs that hold a user's function.
FUNCTIONS = ("train_loop_per_worker", "preprocessor", "evaluate", "predictor", "torchmetrics")


def spec_functions(spec: StepSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec's functions by field name: those by value, those by reference."""
    by_value: dict[str, Any] = {}
    references: dict[str, str] = {}

    def note(field: str, value: Any) -> None:
        if isinstance(value, str):
            if not functions.is_by_value(value):
                references[field] = value
        elif callable(value):
            by_value[field] = value

    for field in FUNCTIONS:
        note(field, getattr(spec, field, None))
    for field, dataset in _own_datasets(spec).items():
        note(f"{field}.function", dataset.function)
    for name, inner in _parts(spec).items():
        theirs = spec_functions(inner)
        for mine, its in zip((by_value, references), theirs, strict=True):
            mine.update({f"{name}.{field}": value for field, value in its.items()})
    return by_value, references


def spec_datasets(spec: StepSpec) -> dict[str, DatasetConfig]:
    """The spec's datasets by field name."""
    inner = {
        f"{name}.{field}": dataset for name, part in _parts(spec).items() for field, dataset in spec_datasets(part).items()
    }
    return {**_own_datasets(spec), **inner}


def _parts(spec: StepSpec) -> dict[str, StepSpec]:
    """The steps that a spec is made of, by field name: of a search its training, of a retraining its steps."""
    return {name: value for name, value in spec if isinstance(value, StepSpec)}


def _own_datasets(spec: StepSpec) -> dict[str, DatasetConfig]:
    datasets = {f"datasets.{name}": config for name, config in getattr(spec, "datasets", {}).items()}
    if getattr(spec, "dataset", None) is not None:
        datasets["dataset"] = spec.dataset  # type: ignore[attr-defined]
    return datasets


def needed_columns(spec: StepSpec, field: str) -> dict[str, list[str]]:
    """The columns that the step needs of its dataset, by the field that names them."""
    part, _, rest = field.partition(".")
    inner = getattr(spec, part)
    if isinstance(inner, StepSpec):
        return {f"{part}.{name}": columns for name, columns in needed_columns(inner, rest).items()}
    if isinstance(spec, TrainSpec) and spec.label_column is not None:
        return {"label_column": [spec.label_column]}
    if isinstance(spec, Evaluation) and spec.predictor is not None:
        return {"label_column": [spec.label_column], "slices": spec.slices}
    if isinstance(spec, BatchInferSpec) and spec.key_column is not None:
        return {"key_column": [spec.key_column]}
    return {}


def needed_rows(spec: StepSpec, field: str, config: DatasetConfig) -> int:
    """How many rows the step needs of a dataset at the least: in a training one for each worker, or some wait for ever."""
    inner = getattr(spec, field.partition(".")[0])
    if isinstance(inner, StepSpec):
        return needed_rows(inner, field.partition(".")[2], config)
    if isinstance(spec, TrainSpec):
        return spec.scaling_config.worker_range[0] if config.shard else 1
    return 1 if isinstance(spec, Evaluation) else 0


def too_few_rows(field: str, config: DatasetConfig, there: int, rows: int) -> SpecError:
    given = f"given {config.path or config.function!r}{' split' if config.split is not None else ''}"
    return SpecError(
        f"{field}: {given}, which {f'has {there} rows' if there else 'is empty'}; accepted are at least {rows},"
        " one for each worker"
        if rows > 1
        else f"{field}: {given}, which is empty; accepted is at least one row"
    )


def dataset_paths(config: DatasetConfig) -> list[str]:
    return config.path if isinstance(config.path, list) else [config.path or ""]
