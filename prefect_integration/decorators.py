"""`@ray_task`: turns a function into a Prefect task that runs on the cluster.

@ray_task(num_cpus=2)
def prepare(day):
    return {"rows": 1000, "path": "s3://…"}
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prefect import Task, get_run_logger
from prefect.cache_policies import CachePolicy
from prefect.context import TaskRunContext

from plugin_core.engine import RayJobResult, RayJobSpec, call_arguments, refuse_beside_a_call
from prefect_integration.step import Step
from prefect_integration.tasks import KEPT, key_of

if TYPE_CHECKING:
    from prefect_integration.tasks import Clusters


def ray_task(
    function: Callable[..., Any] | None = None,
    *,
    cluster: Clusters = None,
    key: str | None = None,
    name: str | None = None,
    **fields: Any,
) -> Any:
    """A task that runs the function as a `RayJobSpec` with these `fields`, and returns what it returns.

    The call's arguments go to the function: plain JSON data or results of steps. `cluster`, `key`: as in `ray_job`.
    `name`: the task's name; None: the function's.
    """
    if function is None:
        return functools.partial(ray_task, cluster=cluster, key=key, name=name, **fields)
    refuse_beside_a_call("@ray_task", fields)
    called = function

    def spec_of(arguments: dict[str, Any]) -> RayJobSpec:
        return RayJobSpec(function=called, arguments=arguments, **fields)

    def cache_key(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
        return key_of(context, lambda: spec_of(call_arguments(called, kwargs=_flat(called, parameters))), key)

    @functools.wraps(called)
    def run(*args: Any, **kwargs: Any) -> Any:
        spec = spec_of(call_arguments(called, args, kwargs))
        result = Step(spec, RayJobSpec, cluster, key, get_run_logger()).run_sync()
        assert isinstance(result, RayJobResult)
        return result.load()

    policy = CachePolicy.from_cache_key_fn(cache_key)
    return Task(run, name=name or called.__name__, cache_policy=policy, **KEPT)


def _flat(function: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Prefect's parameters as keyword arguments: Prefect keeps those of `**options` in a mapping of that name."""
    more = [name for name, each in inspect.signature(function).parameters.items() if each.kind is each.VAR_KEYWORD]
    flat = {name: value for name, value in parameters.items() if name not in more}
    for name in more:
        flat |= parameters.get(name, {})
    return flat
