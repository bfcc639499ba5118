"""One training, one way: `python -m benchmarks.overhead_ways WAY FOLDER STEPS REPORTS`; see `overhead`. Rank 0 writes to
FOLDER/WAY.json the seconds that its steps took, the CPU seconds of its process meanwhile, and the median seconds of a
report with a checkpoint."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORKERS = 2
#: The number of steps before the clock starts.
WARM_UP = 50


def train(steps: int) -> dict[str, float]:
    """Seconds, and CPU seconds, for `steps` steps of a small network on both cores, after a warm-up."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    ]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(128, 256), torch.randint(10, (128,))
    began = cpu = 0.0
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            torch.distributed.barrier()
            began, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.distributed.barrier()
    return {"steps_s": time.perf_counter() - began, "cpu_s": time.process_time() - cpu}


def reports(count: int) -> float:
    """The median seconds that `report()` takes with a small checkpoint."""
    import ray.train

    taken = []
    for number in range(count):
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            folder = tempfile.mkdtemp()
            Path(folder, "state.json").write_text(json.dumps({"number": number}))
            checkpoint = ray.train.Checkpoint(folder)
        began = time.perf_counter()
        ray.train.report({"number": number}, checkpoint=checkpoint)
        taken.append(time.perf_counter() - began)
        time.sleep(0.05)
    return statistics.median(taken)


def train_loop(config: dict[str, Any]) -> None:
    import ray.train

    found = train(config["steps"])
    if config["reports"]:
        found["report_s"] = reports(config["reports"])
    if ray.train.get_context().get_world_rank() == 0:
        Path(config["file"]).write_text(json.dumps(found))


def quiet_loop(config: dict[str, Any]) -> None:
    """Trains nothing for a while, to see what else uses the machine."""
    Path(config["file"]).touch()
    time.sleep(config["seconds"])


def torchrun(file: Path, steps: int, _: int) -> None:
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    found = train(steps)
    if torch.distributed.get_rank() == 0:
        file.write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def bare(file: Path, steps: int, reports: int) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2 * WORKERS, include_dashboard=False)
    TorchTrainer(
        train_loop,
        train_loop_config={"file": str(file), "steps": steps, "reports": reports},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name="run", storage_path=str(file.parent)),
    ).fit()


def step(file: Path, steps: int, reports: int) -> None:
    from plugin_core import RunConfig, ScalingConfig, TrainSpec, run

    spec = TrainSpec(
        framework="torch",
        train_loop_per_worker="benchmarks.overhead_ways:train_loop",
        train_loop_config={"file": str(file), "steps": steps, "reports": reports},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name="run", storage_path=str(file.parent)),
    )
    run(spec, progress=False)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    way, given = sys.argv[1], Path(sys.argv[2])
    {"torchrun": torchrun, "bare": bare, "step": step}[way](given / f"{way}.json", *map(int, sys.argv[3:]))
