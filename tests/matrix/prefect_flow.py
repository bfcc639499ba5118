"""The same as a Prefect flow, on a server of its own. `python prefect_flow.py`, in an empty folder."""

import os

import steps
from prefect import flow

from plugin_core import EvaluateSpec, RunConfig, TrainSpec
from prefect_integration import evaluate, train


@flow
def smoke() -> None:
    here = os.getcwd()
    trained = train(TrainSpec.model_validate(steps.training(f"{here}/runs", f"{here}/killed")))
    judged = EvaluateSpec(
        evaluate="steps:evaluate", checkpoint=trained.checkpoint, run_config=RunConfig(storage_path=f"{here}/runs")
    )
    steps.check(trained.to_json(), evaluate(judged).to_json())


if __name__ == "__main__":
    smoke()
