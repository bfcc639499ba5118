"""DreamBooth as a Prefect flow: train a class → paint it → learn one subject beside those pictures → judge → paint it.

    pip install 'ray-train-workflows[diffusers]'
    python -m example_flows.dreambooth [STORAGE]

A checkpoint, pictures and another checkpoint are passed on by reference; see `dreambooth_steps.py` for what is learned.
STORAGE is a folder or an s3:// URI (default: .demo/runs).
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

from example_flows import dreambooth_steps as steps
from plugin_core import BatchInferSpec, EvaluateSpec, RunConfig, ScalingConfig, TrainSpec
from plugin_core.specs.results import BatchInferResult, EvaluationResult, TrainResult
from plugin_core.storage.location import Location
from prefect_integration import batch_infer, evaluate, train

make_pictures = task(steps.make_pictures)


@flow
def dreambooth(storage: str = demo.STORAGE) -> tuple[TrainResult, EvaluationResult, BatchInferResult]:
    run_config = RunConfig(storage_path=storage)
    data = make_pictures(Location.of(storage).child("dreambooth-data").uri)
    base = train(
        TrainSpec(
            train_loop_per_worker=steps.train_loop,
            train_loop_config={"epochs": 8, "lr": 0.002, "batch_size": 16},
            scaling_config=ScalingConfig(num_workers=2),
            datasets={"pictures": data["class"]},
            run_config=run_config,
        ),
        key="class",
    )
    painted = batch_infer(
        BatchInferSpec(
            predictor=steps.Painter,
            checkpoint=base,
            dataset=data["wanted"],
            batch_size=32,
            output_columns=["image", "prompt"],
            run_config=run_config,
        ),
        key="prior",
    )
    subject = train(
        TrainSpec(
            train_loop_per_worker=steps.train_loop,
            train_loop_config={"epochs": 30, "lr": 0.001, "batch_size": 6, "prior_weight": 1.0},
            datasets={"pictures": data["subject"], "prior": painted},
            resume_from=base.checkpoint,
            run_config=run_config,
        ),
        key="subject",
    )
    judged = evaluate(
        EvaluateSpec(
            evaluate=steps.evaluate,
            checkpoint=subject,
            dataset=data["subject"],
            compare_to=base.checkpoint,
            must_beat={"subject_loss": {"mode": "min"}},
            run_config=run_config,
        )
    )
    pictures = batch_infer(
        BatchInferSpec(
            predictor=steps.Painter, checkpoint=subject, dataset=data["wanted"], batch_size=32, run_config=run_config
        ),
        key="pictures",
    )
    return subject, judged, pictures


if __name__ == "__main__":
    sys.exit(demo.show("one subject, by DreamBooth", *dreambooth(*sys.argv[1:2])))
