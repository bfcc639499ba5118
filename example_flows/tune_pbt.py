"""Population based training of the digits as a Prefect flow: tune → evaluate → promote → predict.

    python -m example_flows.tune_pbt [STORAGE]

Two trials train side by side; every two epochs, the worse one continues from the other's checkpoint with a different
learning rate. STORAGE is a folder or an s3:// URI (default: .demo/runs).
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
from plugin_core import BatchInferSpec, EvaluateSpec, ModelVersion, RunConfig, TrainSpec, TuneSpec
from plugin_core.registry.api import default_registry
from plugin_core.specs.results import BatchInferResult, EvaluationResult, TuneResult
from plugin_core.storage.location import Location
from prefect_integration import batch_infer, evaluate, promote, tune

make_data = task(steps.make_data)


@flow
def tune_pbt(
    storage: str = demo.STORAGE,
) -> tuple[TuneResult, EvaluationResult, ModelVersion, BatchInferResult]:
    run_config = RunConfig(storage_path=storage)
    data = make_data(Location.of(storage).child("digits-data").uri)
    found = tune(
        TuneSpec(
            train=TrainSpec(
                train_loop_per_worker=steps.train_loop,
                train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 64},
                datasets={"train": data["train"]},
            ),
            param_space={"train_loop_config": {"lr": {"grid_search": [0.0001, 0.01]}}},
            metric="loss",
            mode="min",
            scheduler={
                "type": "pbt",
                "perturbation_interval": 2,
                "quantile_fraction": 0.5,
                "hyperparam_mutations": {"train_loop_config": {"lr": {"loguniform": [0.001, 0.02]}}},
            },
            stop={"training_iteration": 6},
            run_config=run_config,
        )
    )
    judged = evaluate(
        EvaluateSpec(
            predictor=steps.Predictor,
            task="classification",
            checkpoint=found,
            dataset=data["test"],
            thresholds={"accuracy": {"min": 0.85}},
            run_config=run_config,
        )
    )
    champion = promote(judged, "digits-pbt", registry=default_registry(storage))
    predictions = batch_infer(
        BatchInferSpec(
            predictor=steps.Predictor,
            checkpoint=champion.checkpoint,
            dataset=data["test"],
            output_columns=["label", "prediction"],
            run_config=run_config,
        )
    )
    return found, judged, champion, predictions


if __name__ == "__main__":
    found, judged, champion, predictions = tune_pbt(*sys.argv[1:2])
    print(f"best: {found.best_config}, trials: {found.trials}, table: {found.table}")
    print(f"champion: version {champion.version}, accuracy {champion.metrics['accuracy']:.4f}")
    sys.exit(demo.show("digits, population based", found.best, judged, predictions))
