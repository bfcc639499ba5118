"""The helper actors of Ray's trainers. Each one is a process that imports Ray Train: 1.4 to 2 CPU seconds (measured)."""

from __future__ import annotations

from typing import Any, NoReturn

from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


class NoDatasets:
    """The provider that `ray.train.get_dataset_shard` asks in the workers of a training without datasets."""

    def get_dataset_shard(self, dataset_info: Any) -> NoReturn:
        raise KeyError(f"datasets: got no dataset named {dataset_info.dataset_name!r}; expected one of the step's datasets")


class _WithoutDatasets(DatasetsCallback):
    """Gives workers Ray Data's context, like its base class, but starts no `DatasetManager`."""

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[NoDatasets]]:
        return {"dataset_shard_provider": [NoDatasets()] * len(workers)}


def leave_out_helpers(trainer: DataParallelTrainer, *, own_job: bool) -> None:
    """Make the trainer start only the helper actors that it needs.

    `own_job`: the job ends with the training, and Ray then removes its placement groups. Otherwise a
    `PlacementGroupCleaner` removes them if the controller is killed.
    """
    default = trainer._create_default_callbacks

    def needed() -> list[Any]:
        callbacks: list[Any] = default()
        if own_job:
            callbacks = [each for each in callbacks if not isinstance(each, PlacementGroupCleanerCallback)]
        if not trainer.datasets:
            without = _WithoutDatasets(trainer.train_run_context, {})
            callbacks = [without if isinstance(each, DatasetsCallback) else each for each in callbacks]
        return callbacks

    trainer._create_default_callbacks = needed
