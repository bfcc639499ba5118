"""How a training's datasets are handed to its workers: Ray Train's `DataConfig`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.runs.context import StepContext
from plugin_core.specs import DatasetConfig, TrainSpec
from plugin_core.specs.functions import call_with


def data_config(context: StepContext, spec: TrainSpec) -> Any:
    """The user's own `DataConfig`, or one made from the datasets' fields; None for Ray's default, which splits every
    dataset among the workers. Raises SpecError if the user's function returns something else."""
    from ray.train import DataConfig

    if spec.data_config is not None:
        made = call_with(context.function("data_config"))
        if not isinstance(made, DataConfig):
            raise SpecError(
                f"data_config: got a function that returns {type(made).__name__}; expected one that returns a"
                " ray.train.DataConfig"
            )
        return made
    options = {name: _execution_options(config) for name, config in spec.datasets.items() if _has_options(config)}
    shared = [name for name, config in spec.datasets.items() if config.shard]
    if resumable := [name for name, config in spec.datasets.items() if config.resumable]:
        from plugin_core.driver.train.resumable_data import ResumableDataConfig

        return ResumableDataConfig(resumable, datasets_to_split=shared, execution_options=options)
    if not options and all(config.shard for config in spec.datasets.values()):
        return None
    return DataConfig(datasets_to_split=shared, execution_options=options)


def resumable_datasets(spec: TrainSpec, datasets: Mapping[str, Any]) -> dict[str, Any]:
    """The `resumable` datasets, read into the object store in the order of their rows."""
    from plugin_core.driver.train.resumable_data import read_in_order

    resumable = {name: config for name, config in spec.datasets.items() if config.resumable}
    return {name: read_in_order(datasets[name], _execution_options(config)) for name, config in resumable.items()}


def _has_options(config: DatasetConfig) -> bool:
    return in_order(config) or config.resource_limits is not None or config.label_selector is not None


def in_order(config: DatasetConfig) -> bool:
    """Whether blocks keep their order: a seed gives the same order each time only if they do."""
    return config.preserve_order or config.resumable or config.shuffle_seed is not None


def _execution_options(config: DatasetConfig) -> Any:
    from ray.data import ExecutionOptions, ExecutionResources
    from ray.train import DataConfig

    with warnings.catch_warnings():
        # Ray's own default uses something that Ray deprecates (2.60)
        warnings.filterwarnings("ignore", message=".*exclude_resources.* is deprecated")
        options: ExecutionOptions = DataConfig.default_ingest_options()
    options.preserve_order = in_order(config)
    options.label_selector = config.label_selector or options.label_selector
    if config.resource_limits is not None:
        limits = {_ARGUMENTS.get(name, name): amount for name, amount in config.resource_limits.items()}
        options.resource_limits = ExecutionResources.for_limits(**limits)
    return options


_ARGUMENTS = {"CPU": "cpu", "GPU": "gpu"}
