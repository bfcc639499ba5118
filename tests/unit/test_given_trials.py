"""The search algorithm that runs trials with given configs, as Ray Tune uses it, without Ray."""

from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Experiment

from plugin_core.ray_internals.given_trials import GivenTrials

CONFIGS = [{"datasets": {"train": {"path": "/a"}}}, {"datasets": {"train": {"function": "a:b"}}, "seed": 1}, {"seed": 1}]


class Nothing(tune.Trainable):
    pass


def made(tmp_path: Path, max_concurrent: int = 0) -> GivenTrials:
    algorithm = GivenTrials(CONFIGS, max_concurrent)
    algorithm.add_configurations(Experiment("search", run=Nothing, config={}, storage_path=str(tmp_path), num_samples=3))
    return algorithm


def configs(algorithm: GivenTrials) -> list[dict[str, Any]]:
    found = []
    while (trial := algorithm.next_trial()) is not None:
        found.append(trial.config)
    return found


def test_each_config_is_a_trial_as_it_is(tmp_path: Path) -> None:
    algorithm = made(tmp_path)
    assert algorithm.total_samples == 3
    assert configs(algorithm) == CONFIGS
    assert algorithm.is_finished()


def test_no_more_run_at_once_than_fit(tmp_path: Path) -> None:
    algorithm = made(tmp_path, max_concurrent=1)
    first = algorithm.next_trial()
    assert algorithm.next_trial() is None
    algorithm.on_trial_complete(first.trial_id)
    assert algorithm.next_trial().config == CONFIGS[1]


def test_after_a_kill_the_rest_is_run(tmp_path: Path) -> None:
    algorithm = made(tmp_path)
    algorithm.next_trial()
    algorithm.save_to_dir(str(tmp_path), "session")
    again = GivenTrials(CONFIGS, 0)  # a restored search adds no configurations
    again.restore_from_dir(str(tmp_path))
    assert configs(again) == CONFIGS[1:]
