"""What a local tier saves: `make bench-tiers`, or `python -m benchmarks.tiers [MEGABYTES]`.

Trainings with a checkpoint at each step, in turn with `checkpoint_config.local_tier` and without, three times each: how
long `report()` blocks the loop, as the median over all steps except the first ones. Storage is an S3 server on this
machine whose answers are delayed by 25 ms, like an object store's. Two nodes with one worker each, so that there is a
peer.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from devtools.chaos import Proxy
from devtools.ray_heads import OwnHead
from devtools.servers import S3_ENVIRONMENT, environment, s3_endpoint, s3_server
from plugin_core import CheckpointConfig, LocalTier, RunConfig, ScalingConfig, TrainSpec, run

TIMES, STEPS, LATENCY_S = 3, 24, 0.025
#: Steps that are not counted: they open connections and start processes.
WARM = 4
TARGET = 1 / 20


def loop(config: dict[str, Any]) -> None:
    import os
    import shutil
    import tempfile
    import time
    from pathlib import Path

    import ray.train

    context, seconds = ray.train.get_context(), []
    for step in range(config["steps"]):
        checkpoint = None
        if context.get_world_rank() == 0:
            folder = tempfile.mkdtemp()
            Path(folder, "weights.bin").write_bytes(os.urandom(config["bytes"]))
            checkpoint = ray.train.Checkpoint(folder)
        time.sleep(config["step_s"])
        began = time.perf_counter()
        ray.train.report({"step": step, "seconds": seconds}, checkpoint=checkpoint)
        seconds.append(time.perf_counter() - began)
        if checkpoint is not None:
            shutil.rmtree(folder)
    ray.train.report({"seconds": seconds})


def blocked(name: str, storage: str, head: OwnHead, megabytes: float, tier: LocalTier | None) -> float:
    """The median seconds of a report."""
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=loop,
        train_loop_config={"steps": STEPS, "bytes": int(megabytes * 10**6), "step_s": 0.5},
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(
            name=name, storage_path=storage, checkpoint_config=CheckpointConfig(num_to_keep=2, local_tier=tier)
        ),
    )
    return statistics.median(run(spec, head.cluster(), progress=False).metrics["seconds"][WARM:])


def main(sizes: list[float]) -> None:
    table = Table("checkpoint", "report with a tier ÷ without", "target", title=f"storage: S3, {LATENCY_S * 1000:g} ms")
    with tempfile.TemporaryDirectory(prefix="h") as folder, environment(S3_ENVIRONMENT):
        head = OwnHead(num_cpus=0)
        try:
            for _ in range(2):
                head.add_node(num_cpus=1)
            with s3_server(Path(folder, "s3.log")) as s3:
                port = urlsplit(s3_endpoint(s3)).port
                assert port is not None
                proxy = Proxy("127.0.0.1", port)
                proxy.delay_s = LATENCY_S
                storage = s3.replace(f":{port}", f":{proxy.port}")
                for megabytes in sizes:
                    seconds: dict[bool, list[float]] = {True: [], False: []}
                    for number in range(TIMES):
                        for tiered in (True, False):
                            tier = LocalTier(storage_every=10, folder=folder) if tiered else None
                            name = f"{megabytes:g}-{number}-{'tier' if tiered else 'storage'}"
                            seconds[tiered].append(blocked(name, storage, head, megabytes, tier))
                    ratio = statistics.median(seconds[True]) / statistics.median(seconds[False])
                    table.add_row(f"{megabytes:g} MB", f"{ratio:.3f}", f"{TARGET:g}")
                proxy.close()
        finally:
            head.close()
    Console(width=120).print(table)


if __name__ == "__main__":
    main([float(size) for size in sys.argv[1:]] or [1.0, 64.0])
