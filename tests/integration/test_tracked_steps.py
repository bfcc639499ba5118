"""Every kind of step in one MLflow experiment, on a real Ray head and a real server: parents and children."""

from pathlib import Path
from typing import Any

import mlflow
import pytest

from devtools.servers import mlflow_server
from devtools.steps import save
from plugin_core import (
    BatchInferSpec,
    EvaluateSpec,
    LocalCluster,
    MLflow,
    RayJobSpec,
    RunConfig,
    TrainSpec,
    TuneSpec,
    run,
)


def loop(config: dict[str, Any]) -> None:
    import ray.train

    for step in range(2):
        ray.train.report({"loss": config["lr"] / (step + 1)}, save({"lr": config["lr"], "epoch": step}))


def evaluate(checkpoint: Any) -> dict[str, Any]:
    return {"accuracy": 0.75}


def count() -> dict[str, int]:
    return {"rows": 3}


@pytest.mark.slow
def test_a_search_and_what_follows_it_are_one_family(cluster: LocalCluster, tmp_path: Path) -> None:
    with mlflow_server(tmp_path / "mlflow") as uri:
        tracker = MLflow(tracking_uri=uri, experiment_name="family")

        def place(name: str) -> RunConfig:
            return RunConfig(name=name, storage_path=str(tmp_path / "runs"))

        found = run(
            TuneSpec(
                train=TrainSpec(framework="python", train_loop_per_worker=loop),
                param_space={"train_loop_config": {"lr": {"grid_search": [0.1, 0.2]}}},
                metric="loss",
                mode="min",
                tracking=tracker,
                run_config=place("search"),
            ),
            cluster,
        )
        judged = run(
            EvaluateSpec(evaluate=evaluate, checkpoint=found, tracking=tracker, run_config=place("judged")), cluster
        )
        config: dict[str, Any] = {"tracking": tracker}
        rows = tmp_path / "rows.csv"
        rows.write_text("x\n1\n2\n3\n")
        counted = run(RayJobSpec(function=count, run_config=place("counted"), **config), cluster)
        predicted = run(
            BatchInferSpec(
                predictor="devtools.steps:Predictor",
                checkpoint=found,
                dataset=str(rows),
                run_config=place("predicted"),
                **config,
            ),
            cluster,
        )
        client = mlflow.MlflowClient(uri)
        experiment = client.get_experiment_by_name("family")
        assert experiment is not None
        runs = {run.data.tags["raytrain.run"]: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 6
    assert runs[counted.run.uri].data.metrics == {"rows": 3.0}
    assert runs[predicted.run.uri].data.metrics["rows"] == 3.0
    search, evaluation = runs[found.run.uri], runs[judged.run.uri]
    trials = [run for run in runs.values() if run.data.tags.get("mlflow.parentRunId") == search.info.run_id]
    assert {run.data.params["lr"] for run in trials} == {"0.1", "0.2"}
    assert {run.data.metrics["loss"] for run in trials} == {0.05, 0.1}
    assert evaluation.data.metrics == {"accuracy": 0.75}
    assert evaluation.data.tags["mlflow.parentRunId"] == runs[found.best.run.uri].info.run_id
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert judged.tracking["mlflow"].endswith(evaluation.info.run_id)
