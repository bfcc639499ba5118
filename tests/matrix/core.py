"""Train, lose a worker, resume, evaluate: from Python, on the embedded head. `python core.py`, in an empty folder."""

import os

import steps

from plugin_core import EvaluateSpec, RayCluster, RunConfig, TrainSpec, run


def smoke(cluster: RayCluster | None = None) -> TrainSpec:
    """`cluster`: instead of the embedded head. Returns the training's spec."""
    here = os.getcwd()
    spec = TrainSpec.model_validate(steps.training(f"{here}/runs", f"{here}/killed")).with_name("smoke")
    trained = run(spec, cluster)
    judged = EvaluateSpec(
        evaluate="steps:evaluate",
        checkpoint=trained.checkpoint,
        run_config=RunConfig(name="judged", storage_path=f"{here}/runs"),
    )
    steps.check(trained.to_json(), run(judged, cluster).to_json())
    return spec


if __name__ == "__main__":
    smoke()
