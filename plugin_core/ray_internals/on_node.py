"""Calls a function on a given node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

T = TypeVar("T")


def call_on(node: str, function: Callable[[], T], timeout_s: float) -> T | None:
    """What `function` returns in a process on `node` (its id), which needs none of its resources; None if the node does
    not answer within `timeout_s` seconds. Blocks."""
    if node == ray.get_runtime_context().get_node_id():
        return function()

    def call() -> T:  # Ray takes no partial and no bound method
        return function()

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    answer = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(call).remote()
    try:
        found: T = ray.get(answer, timeout=timeout_s)
    except GetTimeoutError:
        ray.cancel(answer, force=True)
        return None
    except RayError:
        return None
    return found
