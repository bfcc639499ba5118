"""Ray's own examples on a real Ray head, each function given to a step by its name in Ray's package, unchanged.

Which they are, and why others are left out: `tests/support/ray_examples.py`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from plugin_core import LocalCluster, MLflow, RunConfig, TrainSpec, TuneSpec, run
from plugin_core.errors import UserCodeError
from tests.support.ray_examples import Fails, Searches, Trains, cases

pytestmark = pytest.mark.slow

TRAININGS = cases(Trains)
SEARCHES = cases(Searches)
FAILING = cases(Fails)


def regression() -> Any:
    """Rows like those of the file that the examples download: 100 numbers, and their sum."""
    import numpy as np
    import ray.data

    rows = np.random.default_rng(1).normal(size=(64, 100))
    return ray.data.from_items([{"x": row, "y": row.sum()} for row in rows])


def train_spec(tmp_path: Path, function: str, **fields: Any) -> TrainSpec:
    run_config = RunConfig(name="example", storage_path=str(tmp_path))
    given: dict[str, Any] = {"framework": "python", "train_loop_per_worker": function, "run_config": run_config, **fields}
    return TrainSpec(**given)


@pytest.mark.parametrize("name", TRAININGS)
def test_an_example_trains(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    module, case = TRAININGS[name]
    datasets = {key: {"function": regression, "shard": key == "train"} for key in case.data}
    database = f"sqlite:///{tmp_path}/mlflow.db"
    tracking = [MLflow(tracking_uri=database)] if case.mlflow else []
    fields = {"train_loop_config": case.config, "datasets": datasets, "tracking": tracking, **case.fields}
    result = run(train_spec(tmp_path, f"{module}:{case.function}", **fields), cluster)
    assert set(case.metrics.split()) <= set(result.metrics)
    assert all(isinstance(value, int | float) for value in result.metrics.values()), result.metrics
    assert (result.reports, result.warnings) == (case.reports, [])
    assert (result.checkpoint is not None) == case.checkpoint


@pytest.mark.parametrize("name", SEARCHES)
def test_an_example_is_searched(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    module, case = SEARCHES[name]
    train = train_spec(tmp_path, f"{module}:{case.function}", train_loop_config=case.config)
    fields = {"mode": "min", "run_config": train.run_config, **case.fields}
    space = {"train_loop_config": case.space}
    result = run(TuneSpec(train=train, param_space=space, metric=case.metric, **fields), cluster)
    rows = json.loads(Path(result.table).read_text())
    assert (sum(result.trials.values()), result.trials["failed"]) == (2, 0)
    assert set(result.best_config["train_loop_config"]) >= set(case.space)
    best = (max if fields["mode"] == "max" else min)(row[case.metric] for row in rows)
    assert result.metrics[case.metric] == pytest.approx(best)
    assert (result.checkpoint is not None) == case.checkpoint


@pytest.mark.parametrize("name", FAILING)
def test_an_example_that_this_machine_cannot_run_says_why(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    module, case = FAILING[name]
    with pytest.raises(UserCodeError) as caught:
        run(train_spec(tmp_path, f"{module}:{case.function}", train_loop_config=case.config, **case.fields), cluster)
    assert case.words in caught.value.message
    assert "\n" not in caught.value.message
