"""What a search costs compared with bare Ray Tune: `make bench-tune`, or `python -m benchmarks.tune [TRIALS]`.

The same trials, on the digits, on one Ray head in one run: as a step of this package; and as a program that gives Ray
Tune a function whose trials each run a TorchTrainer, as in Ray's guide to Tune with Train V2.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from devtools.ray_heads import OwnHead
from example_flows import digits_steps as steps
from plugin_core import RunConfig, TrainSpec, TuneSpec, run

EPOCHS = 4
AT_ONCE = 2

BARE = """
import sys
import ray
from ray import tune
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from example_flows.digits_steps import train_loop
data, storage, trials, epochs, at_once = sys.argv[1:]

def trial(config):
    name = tune.get_context().get_trial_id()
    TorchTrainer(
        train_loop, train_loop_config=config, scaling_config=ScalingConfig(num_workers=1),
        datasets={"train": ray.data.read_parquet(data)},
        run_config=RunConfig(name=name, storage_path=storage, callbacks=[TuneReportCallback()]),
    ).fit()

ray.init(log_to_driver=False)
space = {"epochs": int(epochs), "batch_size": 64, "lr": tune.loguniform(0.001, 0.01)}
tune.Tuner(
    trial, param_space=space,
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=int(trials), max_concurrent_trials=int(at_once)),
    run_config=tune.RunConfig(storage_path=storage),
).fit()
"""


def main(trials: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        data = steps.make_data(str(folder / "data"))["train"]
        head = OwnHead(num_cpus=6)
        try:
            timed = [(way, count) for count in (1, trials) for way in (bare, step)]
            times = {(way.__name__, count): way(head, data, folder, count) for way, count in timed}
        finally:
            head.close()
    table = Table("", "1 trial, s", f"{trials} trials, s", title=f"{AT_ONCE} trials at once, {EPOCHS} epochs each")
    for name in ("bare", "step"):
        table.add_row(name, f"{times[name, 1]:.1f}", f"{times[name, trials]:.1f}")
    table.add_row("step ÷ bare", *(f"{times['step', count] / times['bare', count]:.2f}" for count in (1, trials)))
    Console().print(table)


def step(head: OwnHead, data: str, folder: Path, trials: int) -> float:
    spec = TuneSpec(
        train=TrainSpec(
            train_loop_per_worker=steps.train_loop,
            train_loop_config={"epochs": EPOCHS, "batch_size": 64},
            datasets={"train": data},
        ),
        param_space={"train_loop_config": {"lr": {"loguniform": [0.001, 0.01]}}},
        metric="loss",
        mode="min",
        num_samples=trials,
        max_concurrent_trials=AT_ONCE,
        run_config=RunConfig(name=f"search-{trials}", storage_path=str(folder / "steps")),
    )
    began = time.monotonic()
    run(spec, head.cluster())
    return time.monotonic() - began


def bare(head: OwnHead, data: str, folder: Path, trials: int) -> float:
    environment = {**head.environment, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    arguments = [data, str(folder / f"bare-{trials}"), str(trials), str(EPOCHS), str(AT_ONCE)]
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", BARE, *arguments], check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 8)
