"""Which helper actors of Ray Train a training starts."""

from types import SimpleNamespace

import pytest
import ray.data
from ray.train import ScalingConfig
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from plugin_core.ray_internals.trainer import leave_out_helpers


def callbacks_of(own_job: bool, datasets: dict | None = None) -> list:
    trainer = DataParallelTrainer(print, scaling_config=ScalingConfig(num_workers=2), datasets=datasets)
    leave_out_helpers(trainer, own_job=own_job)
    return trainer._create_default_callbacks()


@pytest.mark.parametrize("own_job", [True, False])
def test_placement_groups_are_cleaned_up_when_the_job_continues(own_job: bool) -> None:
    cleaners = [each for each in callbacks_of(own_job) if isinstance(each, PlacementGroupCleanerCallback)]
    assert len(cleaners) == (0 if own_job else 1)


def test_without_datasets_asking_for_one_is_an_error_that_names_it() -> None:
    (callback,) = [each for each in callbacks_of(True) if isinstance(each, DatasetsCallback)]
    providers = callback.before_init_train_context([None, None])["dataset_shard_provider"]
    assert len(providers) == 2
    with pytest.raises(KeyError, match="no dataset named 'train'"):
        providers[0].get_dataset_shard(SimpleNamespace(dataset_name="train"))


def test_with_datasets_rays_own_manager_is_kept() -> None:
    datasets = {"train": lambda: ray.data.range(3)}
    assert [type(each) for each in callbacks_of(True, datasets) if isinstance(each, DatasetsCallback)] == [DatasetsCallback]
