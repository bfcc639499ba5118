"""The whole loop as a Prefect flow, month after month: tune → retrain against the champion → predict with the champion.

    python -m example_flows.loop [STORAGE [MONTH ...]]

January has few digits, so February's model beats it; March's labels are corrupted, so the champion stays. By default it
runs for January, February and March. STORAGE is a folder or an s3:// URI (default: .demo/runs).
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: let it find its neighbours
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from example_flows import demo

if __name__ == "__main__":
    demo.prefect_environment()

from prefect import flow, task

from example_flows import digits_steps as steps
from plugin_core import (
    BatchInferSpec,
    Evaluation,
    RetrainSpec,
    RunConfig,
    ScalingConfig,
    TrainSpec,
    TuneSpec,
    best_train_spec,
)
from plugin_core.registry.api import default_registry
from plugin_core.specs.results import BatchInferResult, RetrainResult
from plugin_core.storage.location import Location
from prefect_integration import batch_infer, retrain, tune

make_data = task(steps.make_data)


@flow
def loop(storage: str = demo.STORAGE, month: str = "january") -> tuple[RetrainResult, BatchInferResult]:
    run_config = RunConfig(storage_path=storage)
    data = make_data(Location.of(storage).child(f"digits-{month}").uri, month)

    def training(epochs: int, workers: int) -> TrainSpec:
        return TrainSpec(
            train_loop_per_worker=steps.train_loop,
            train_loop_config={"epochs": epochs, "batch_size": 32},
            scaling_config=ScalingConfig(num_workers=workers),
            datasets={"train": data["train"]},
        )

    found = tune(
        TuneSpec(
            train=training(epochs=2, workers=1),
            param_space={"train_loop_config": {"lr": {"loguniform": [0.003, 0.01]}}},
            metric="loss",
            mode="min",
            num_samples=2,
            run_config=run_config,
        )
    )
    outcome = retrain(
        RetrainSpec(
            model="digits",
            registry=default_registry(storage),
            train=best_train_spec(found, training(epochs=12, workers=2)),
            evaluate=Evaluation(
                predictor=steps.Predictor,
                task="classification",
                dataset=data["test"],
                thresholds={"accuracy": {"min": 0.3}},
                must_beat=["accuracy"],
            ),
            run_config=run_config,
        )
    )
    predictions = batch_infer(
        BatchInferSpec(
            predictor=steps.Predictor,
            checkpoint=outcome.checkpoint,
            dataset=data["test"],
            output_columns=["label", "prediction"],
            run_config=run_config,
        )
    )
    return outcome, predictions


if __name__ == "__main__":
    storage, *months = sys.argv[1:] or [demo.STORAGE]
    for month in months or steps.MONTHS:
        outcome, predictions = loop(storage, month)
        print(f"{month}: {outcome.outcome}: {outcome.reason}; the champion is version {outcome.champion}")
        print(f"{month}: {predictions.rows} predictions of it in {predictions.output}", flush=True)
