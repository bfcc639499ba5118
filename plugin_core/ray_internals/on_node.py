"""Call a function on a given node; check whether a node is there."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

T = TypeVar("T")
#: Seconds for a connection to the raylet of a node.
CONNECT_S = 3.0


def raylet_answers(node: str) -> bool:
    """Whether the raylet of `node` (its id) takes connections. Ray itself takes about 15 s to notice that a node is
    gone."""
    for known in ray.nodes():
        if known["NodeID"] == node and known["Alive"]:
            with suppress(OSError):
                socket.create_connection((known["NodeManagerAddress"], known["NodeManagerPort"]), CONNECT_S).close()
                return True
    return False


def call_on(node: str, function: Callable[[], T], timeout_s: float) -> T | None:
    """Run `function` in a process on `node` (its id), without reserving any of its resources, and return the result;
    None if the node does not answer within `timeout_s` seconds. Blocks."""
    if node == ray.get_runtime_context().get_node_id():
        return function()

    def call() -> T:  # Ray accepts neither a partial nor a bound method
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
