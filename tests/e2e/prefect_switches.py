"""A flow with Ray Train's less common switches, and a search over preprocessors:
`python -m tests.e2e.prefect_switches STORAGE`."""

import sys
from pathlib import Path
from typing import Any

import ray.train
from prefect import flow
from pyarrow.fs import LocalFileSystem

from devtools.steps import save
from example_flows.tables import write_tables
from plugin_core import RunConfig, ScalingConfig, TrainSpec, TuneSpec
from plugin_core.specs import CheckpointConfig
from prefect_integration import train, tune

ROWS = 40


def train_loop(config: dict[str, Any]) -> None:
    import torch

    from plugin_core.loops import rows

    batches = rows.from_dataset_shard(batch_size=8)
    for epoch in range(batches.epoch, 2):
        ids = [int(number) for batch in batches for number in batch["id"]]
        checkpoint = save({"epoch": epoch})
        batches.save(checkpoint.path)
        metrics = {"epoch": epoch, "ids": ids, "deterministic": torch.are_deterministic_algorithms_enabled()}
        ray.train.report(metrics, checkpoint, validation=True)


def validate(checkpoint: Any) -> dict[str, float]:
    with checkpoint.as_directory() as folder:
        return {"accuracy": 0.9 if '"epoch": 1' in Path(folder, "state.json").read_text() else 0.5}


class Announce(ray.train.UserCallback):
    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        print(f"announced epoch {metrics[0]['epoch']}", flush=True)


def scaled() -> Any:
    from ray.data.preprocessors import StandardScaler

    return StandardScaler(columns=["id"])


def search_loop(config: dict[str, Any]) -> None:
    batches = ray.train.get_dataset_shard("train").iter_batches(batch_size=None)
    ray.train.report({"largest": max(float(batch["id"].max()) for batch in batches)})


@flow
def switches(storage: str) -> None:
    import pyarrow as pa

    data = write_tables(f"{storage}/data", {"rows": pa.table({"id": list(range(ROWS))})})["rows"]
    one = ScalingConfig(num_workers=1)
    trained = train(
        TrainSpec(
            framework="torch",
            train_loop_per_worker=train_loop,
            validation=validate,
            seed=3,
            deterministic=True,
            scaling_config=one,
            datasets={"train": {"path": data, "resumable": True}},
            run_config=RunConfig(
                storage_path=f"{storage}/runs",
                storage_filesystem=LocalFileSystem(),
                callbacks=[Announce()],
                checkpoint_config=CheckpointConfig(checkpoint_score_attribute="accuracy"),
            ),
        ),
        key="fit",
    )
    assert trained.best_score == 0.9
    assert list(trained.history()["epoch"]) == [0, 1]
    found = tune(
        TuneSpec(
            train=TrainSpec(
                framework="python", train_loop_per_worker=search_loop, datasets={"train": data}, scaling_config=one
            ),
            param_space={"preprocessor": {"grid_search": [scaled, None]}},
            metric="largest",
            mode="min",
            run_config=RunConfig(storage_path=f"{storage}/runs"),
        ),
        key="search",
    )
    assert found.best.metrics["largest"] < 2, "scaled"
    assert "scaled" in found.best_config["preprocessor"]


if __name__ == "__main__":
    switches(sys.argv[1])
