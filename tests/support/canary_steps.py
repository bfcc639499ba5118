"""The steps of the canaries' chain, as data that every engine takes. The Prefect flow is
`python -m tests.support.canary_steps WHAT STORAGE ROWS`.

WHAT: "chain" trains, evaluates and predicts; "submit" is refused before a job is submitted, "loop" fails in its train loop,
and "cancel" waits to be cancelled.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from devtools.steps import save

BLOCK = "canaries"


def loop(config: dict[str, Any]) -> None:
    import ray.train

    if config["with_secrets"]:
        assert os.environ["SERVICE_KEY"].startswith("canary-")
        assert "canary-" in Path(os.environ["SERVICE_FILE"]).read_text()
    ray.train.report({"epoch": 0}, checkpoint=save({"epoch": 0}))
    if config["what"] == "loop":
        raise ValueError("the data is bad")
    while config["what"] == "cancel":
        time.sleep(0.2)


def train_fields(what: str, storage: str, with_secrets: bool = True) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "framework": "python",
        "train_loop_per_worker": "tests.support.canary_steps:loop",
        "train_loop_config": {"what": what, "with_secrets": with_secrets},
        "run_config": {"storage_path": storage},
        "limits": {"heartbeat_ttl_s": 10},
    }
    if with_secrets:
        fields["tracking"] = ["mlflow"]
    if what == "submit":
        fields["runtime_env"] = {"working_dir": "/nowhere/at/all"}
    return fields


def evaluate_fields(checkpoint: Any, storage: str, rows: str) -> dict[str, Any]:
    return {
        "evaluate": "devtools.steps:evaluate",
        "checkpoint": checkpoint,
        "dataset": rows,
        "run_config": {"storage_path": storage},
    }


def infer_fields(checkpoint: Any, storage: str, rows: str) -> dict[str, Any]:
    return {
        "predictor": "devtools.steps:Predictor",
        "checkpoint": checkpoint,
        "dataset": rows,
        "run_config": {"storage_path": storage},
    }


def flow(what: str, storage: str, rows: str) -> None:
    """The chain in Prefect, on the cluster of a stored block."""
    import prefect

    from prefect_integration import RayCluster, batch_infer, evaluate, train

    @prefect.flow(name="canaries")
    def canaries(what: str, storage: str, rows: str) -> None:
        cluster = RayCluster.load(BLOCK)
        trained = train(train_fields(what, storage), cluster)
        evaluate(evaluate_fields(trained.checkpoint, storage, rows), cluster)
        batch_infer(infer_fields(trained.checkpoint, storage, rows), cluster)

    canaries(what, storage, rows)


if __name__ == "__main__":
    flow(*sys.argv[1:4])
    print(json.dumps("done"))
