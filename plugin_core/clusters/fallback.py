"""Several clusters for one run, in order of preference: for example, cheap spot nodes first, then on-demand ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plugin_core.clusters.base import Cluster
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.clusters.options import check_options
from plugin_core.errors import RayTrainWorkflowsError, SpecError
from plugin_core.specs.fields import Seconds

#: The maximum number of clusters in a list.
MOST = 8


@dataclass(frozen=True)
class FallbackCluster:
    """A run starts on the first of these `clusters` (at most 8), and moves on to the next one, from its last checkpoint,
    when

    * the cluster cannot be reached or started, or is too small for the step,
    * it has been starting, or waiting in a queue, for more than `after_s` seconds,
    * the step gets no resources there for `after_s` seconds (or `limits.scheduling_timeout_s`, if that is less),
    * the cluster that ran it is gone, or does not answer for `after_s` seconds (or `limits.unreachable_timeout_s`) while
      the driver sends no heartbeat.

    An attempt begins on the next cluster only when the previous attempt is known to be over, or is fenced. A cluster
    made for the run is deleted when the run leaves it, whatever its `on_failure` says. A run never goes back to an
    earlier cluster, and treats the last one as if it were the only one. Every cluster must reach the run directory.
    """

    clusters: Sequence[Any]
    after_s: Seconds = 600.0

    def __post_init__(self) -> None:
        given = self.clusters
        if isinstance(given, str) or not isinstance(given, Sequence) or not 1 <= len(given) <= MOST:
            found = (
                f"{len(given)} of them" if isinstance(given, (list, tuple)) else f"a value of type {type(given).__name__}"
            )
            raise SpecError(f"clusters: got {found}; expected a list of 1 to {MOST} clusters")
        for number, each in enumerate(given):
            if isinstance(each, FallbackCluster) or not hasattr(each, "choices"):
                raise SpecError(
                    f"clusters[{number}]: got a value of type {type(each).__name__}; expected a RayCluster, KubeRayCluster"
                    " or LocalCluster"
                )
        check_options(self)
        object.__setattr__(self, "clusters", tuple(given))
        identities = [each.identity for each in given]
        for number, identity in enumerate(identities):
            if identity in identities[:number]:
                first = identities.index(identity)
                raise SpecError(f"clusters[{number}]: got the same cluster as clusters[{first}]; expected another one")

    # ---- from all clusters

    def choices(self) -> tuple[Cluster, ...]:
        return tuple(self.clusters)

    @property
    def title(self) -> str:
        more = len(self.clusters) - 1
        return self._first.title + (f" (then {more} more)" if more else "")

    @property
    def shares_this_machine(self) -> bool:
        return all(each.shares_this_machine for each in self.clusters)

    @property
    def autoscaling(self) -> bool:
        return any(each.autoscaling for each in self.clusters)

    @property
    def ship_package(self) -> bool:
        return any(each.ship_package for each in self.clusters)

    @property
    def keep_every_s(self) -> float | None:
        return min((each.keep_every_s for each in self.clusters if each.keep_every_s is not None), default=None)

    def of_workflow(self, key: str) -> FallbackCluster:
        return replace(self, clusters=[each.of_workflow(key) for each in self.clusters])

    def of_run(self, uri: str) -> FallbackCluster:
        return replace(self, clusters=[each.of_run(uri) for each in self.clusters])

    async def end_workflow(self) -> None:
        await self._all(lambda each: each.end_workflow())

    async def leave(self) -> None:
        await self._all(lambda each: each.leave())

    async def release(self, succeeded: bool) -> None:
        await self._all(lambda each: each.release(succeeded))

    async def _all(self, end: Callable[[Cluster], Awaitable[None]]) -> None:
        """End each cluster, even if another one could not be ended. Raises the first error."""
        failed: list[RayTrainWorkflowsError] = []
        for each in self.clusters:
            try:
                await end(each)
            except RayTrainWorkflowsError as exc:
                failed.append(exc)
        if failed:
            raise failed[0]

    def reference(self) -> dict[str, Any]:
        return {"clusters": [each.reference() for each in self.clusters], "after_s": self.after_s}

    # ---- from the first, for callers that expect a single cluster

    @property
    def _first(self) -> Cluster:
        return self.choices()[0]

    @property
    def identity(self) -> str:
        return self._first.identity

    @property
    def env_vars(self) -> dict[str, str]:
        return self._first.env_vars

    @property
    def env_files(self) -> dict[str, str]:
        return self._first.env_files

    async def lives(self) -> bool:
        return await self._first.lives()

    async def end_leftovers(self) -> bool:
        return await self._first.end_leftovers()

    async def connect(self) -> JobsClient:
        return await self._first.connect()

    async def keep(self) -> None:
        await self._first.keep()

    def driver_command(self) -> list[str]:
        return self._first.driver_command()
