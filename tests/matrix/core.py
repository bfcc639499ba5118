"""Train, lose a worker, resume, evaluate: from Python, on the embedded head. `python core.py`, in an empty folder."""

import os

import steps

from plugin_core import EvaluateSpec, RunConfig, TrainSpec, run

if __name__ == "__main__":
    spec = TrainSpec.model_validate(steps.training(f"{os.getcwd()}/runs", f"{os.getcwd()}/killed")).with_name("smoke")
    trained = run(spec)
    judged = EvaluateSpec(
        evaluate="steps:evaluate",
        checkpoint=trained.checkpoint,
        run_config=RunConfig(name="judged", storage_path=f"{os.getcwd()}/runs"),
    )
    steps.check(trained.to_json(), run(judged).to_json())
