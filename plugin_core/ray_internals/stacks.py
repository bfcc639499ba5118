"""Take the stacks of a worker group's processes from outside, on their nodes: the workers themselves may not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def of_workers(worker_group: Any, dump: Callable[[int], str], timeout_s: float) -> dict[int, str]:
    """Rank → what `dump` says about its process, or why it says nothing. Blocks for at most `timeout_s` seconds."""
    asked = {}
    for worker in worker_group.get_workers():
        strategy = NodeAffinitySchedulingStrategy(worker.metadata.node_id, soft=False)
        remote = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(dump)
        asked[worker.distributed_context.world_rank] = remote.remote(worker.metadata.pid)
    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
    return {rank: _answer(ref, ref in ready, timeout_s) for rank, ref in asked.items()}


def _answer(ref: ray.ObjectRef, ready: bool, timeout_s: float) -> str:
    if not ready:
        ray.cancel(ref, force=True)
        return f"no stacks: its node did not answer within {timeout_s:g} s"
    try:
        found: str = ray.get(ref)
    except RayError as exc:
        return f"no stacks: {str(exc).strip().splitlines()[0]}"
    return found
