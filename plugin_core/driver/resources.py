"""Waits for cluster resources for a bounded time, and reports what was missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plugin_core.errors import NO_RESOURCES, StepTimeoutError
from plugin_core.specs import Limits
from plugin_core.specs.resources import in_words

#: Set in a job whose run moves on to another cluster after this many seconds without resources.
MOVES_ON = "RAYTRAIN_MOVES_ON_S"


def patient(limits: Limits) -> Limits:
    """A step's limits, with a wait for resources no longer than its run's patience with the cluster."""
    patience, given = os.environ.get(MOVES_ON), limits.scheduling_timeout_s
    if not patience or (given is not None and given <= float(patience)):
        return limits
    return limits.model_copy(update={"scheduling_timeout_s": float(patience)})


@contextmanager
def reserved(resources: dict[str, float], timeout_s: float | None) -> Iterator[Any]:
    """Reserve these resources (Ray's units) for one process as a placement group; yield the scheduling strategy to use.

    Raises StepTimeoutError if they are not available within `timeout_s` seconds (None: no limit).
    """
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    wanted = {name: amount for name, amount in resources.items() if amount}
    if not wanted:
        yield "DEFAULT"
        return
    group = placement_group([wanted])
    try:
        try:
            ray.get(group.ready(), timeout=timeout_s)
        except GetTimeoutError as exc:
            raise no_resources(timeout_s, in_words(wanted)) from exc
        yield PlacementGroupSchedulingStrategy(group)
    finally:
        remove_placement_group(group)


def no_resources(timeout_s: float | None, wanted: str, ahead: str = "") -> StepTimeoutError:
    """Return the error for resources that never became available, with the free and total ones. `ahead`: who has them."""
    import ray

    have, free = ray.cluster_resources(), ray.available_resources()
    # "_group_": what Ray calls the parts of placement groups
    hidden = ("node:", "memory", "object_store", "accelerator_type:", "bundle_group")
    names = [name for name in sorted(have) if not name.startswith(hidden) and "_group_" not in name]
    there = ", ".join(f"{free.get(name, 0.0):g} of {in_words({name: have[name]})}" for name in names)
    return too_late(
        f"the step got no resources within {in_limit(timeout_s)}: it needs {wanted or 'workers'};"
        f" free: {there or 'none'}{ahead and f'; ahead: {ahead}'}"
    )


def too_late(message: str) -> StepTimeoutError:
    error = StepTimeoutError(message)
    error.cause = NO_RESOURCES
    return error


def in_limit(timeout_s: float | None) -> str:
    """The limit in words, for an error."""
    moves_on = os.environ.get(MOVES_ON)
    name = "after_s" if moves_on and float(moves_on) == timeout_s else "limits.scheduling_timeout_s"
    return f"{name} ({timeout_s:g} s)"


def fitting(room: dict[str, float] | None, each: dict[str, float], low: int, high: int, beside: dict[str, float]) -> int:
    """How many processes that take `each` fit in the room (None: any number) besides `beside`: from `low` to `high`."""
    fit = [
        int((room.get(name, 0.0) - beside.get(name, 0.0)) / amount + 1e-6)
        for name, amount in each.items()
        if room is not None and amount
    ]
    return max(low, min([high, *fit]))
