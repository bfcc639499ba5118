"""The examples of the frameworks as Prefect flows."""

from __future__ import annotations

import sys

from example_flows import demo

if __name__ == "__main__":
    demo.prefect_environment()

from prefect import flow

from example_flows.frameworks import confirmed, example, installed
from plugin_core.specs.results import TrainResult
from prefect_integration import train


@flow
def framework(name: str, storage: str = demo.STORAGE) -> tuple[TrainResult, dict[str, float]]:
    """Train an example, and evaluate its checkpoint in this process."""
    spec = example(name).SPEC
    run_config = spec.run_config.model_copy(update={"storage_path": storage})
    trained = train(spec.model_copy(update={"run_config": run_config}))
    return trained, example(name).evaluate(trained.checkpoint.to_ray())


if __name__ == "__main__":
    wrong = []
    for name in sys.argv[1:] or installed():
        trained, scores = framework(name)
        print(f"{name}: reported {trained.metrics}; its checkpoint evaluated: {scores}", flush=True)
        if not confirmed(trained.metrics, scores):
            wrong.append(name)
    sys.exit(f"what the checkpoint scores is not what was reported: {', '.join(wrong)}" if wrong else 0)
