"""Where a run is: the cluster of its newest attempt, the one where the next attempt begins, and the connection to it."""

from __future__ import annotations

import asyncio
import logging
import time

from plugin_core.clusters.base import Cluster
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.errors import ClusterQueuedError, ClusterUnreachableError, RayTrainWorkflowsError
from plugin_core.supervisor.events import Event, Listener
from plugin_core.supervisor.timings import CONNECT_S


class Where:
    """`cluster` is where the newest attempt is, or where the next one is about to begin. A run with several clusters
    uses them in order and never goes back, except to look after an attempt that it has there.

    It keeps nothing that matters: a later call begins where the newest attempt is, or with the first cluster.
    """

    def __init__(self, cluster: Cluster, run_uri: str):
        self._choices = tuple(each.of_run(run_uri) for each in cluster.choices())
        self._after_s = cluster.after_s
        self._at = self._next = 0
        self._tried_since: dict[int, float] = {}
        self._queued = ""
        self.client: JobsClient | None = None

    @property
    def cluster(self) -> Cluster:
        return self._choices[self._at]

    @property
    def is_choice(self) -> bool:
        return len(self._choices) > 1

    @property
    def patience_s(self) -> float | None:
        """Seconds after which the run moves on to another cluster; None: there is no other."""
        return self._after_s if self._at + 1 < len(self._choices) else None

    async def connect(self) -> JobsClient:
        if self.client is None:
            client = await self.cluster.connect()
            self.client = await client.__aenter__()
        return self.client

    async def reconnect(self) -> JobsClient:
        """`connect` to a cluster on which a job may be alive; also raises ClusterUnreachableError after `CONNECT_S`.

        A cluster that does not become ready is deleted by `connect` in the end, which would end the job."""
        try:
            return await asyncio.wait_for(self.connect(), CONNECT_S)
        except TimeoutError:
            said = f"cluster: {self.cluster.title} is not ready, and its job may be alive"
            raise ClusterUnreachableError(said) from None

    async def close(self) -> None:
        if self.client is not None:
            await self.client.__aexit__(None, None, None)
            self.client = None

    async def find(self, identity: str) -> None:
        """Go where the newest attempt is, unless that is a cluster that this call does not know."""
        for index, each in enumerate(self._choices):
            if each.identity == identity:
                self._next = max(self._next, index)
                await self._go_to(index)
                return

    async def find_next(self) -> None:
        """Go where the next attempt begins."""
        await self._go_to(self._next)

    async def begin(self) -> JobsClient:
        """Connect to begin an attempt. If there is another cluster, also raises ClusterUnreachableError for one that
        has not come up, or not left its queue, in time."""
        if self.client is not None or (patience := self.patience_s) is None:
            return await self.connect()
        since = self._tried_since.setdefault(self._at, time.monotonic())
        try:
            client = await asyncio.wait_for(self.connect(), max(0.0, since + patience - time.monotonic()))
        except TimeoutError:
            why = self._queued or f"{self.cluster.title} was not ready"
            raise ClusterUnreachableError(f"{why}, after {patience:g} s") from None
        except ClusterQueuedError as exc:
            self._queued = exc.message
            raise
        del self._tried_since[self._at]
        return client

    async def move_on(self, why: str, tell: Listener) -> bool:
        """Leave the cluster on which the next attempt was to begin, for the one after it; False if there is none."""
        if self._next + 1 == len(self._choices):
            return False
        left, self._next = self._choices[self._next], self._next + 1
        await _left(left, tell)
        await self.find_next()
        tell(Event("state", f"{why and f'{why}; '}moving on to {self.cluster.title}", level=logging.WARNING))
        return True

    async def move_on_from_here(self, tell: Listener) -> None:
        """`move_on` after an attempt here, unless the run has already left. The reason was told with the decision."""
        if self._next == self._at:
            await self.move_on("", tell)

    async def release(self, succeeded: bool, tell: Listener) -> None:
        """The run is over: release its cluster, and leave the others, which an earlier call may have made. Never raises."""
        await release(self.cluster, succeeded, tell)
        for each in self._choices:
            if each is not self.cluster:
                await _left(each, tell)

    async def _go_to(self, index: int) -> None:
        if index != self._at:
            await self.close()
            self._at, self._queued = index, ""


async def tell_start(cluster: Cluster, tell: Listener) -> None:
    """Say so if connecting to the cluster will start it, which takes a while. Raises one of CLUSTER_ERRORS."""
    if not await cluster.lives():
        tell(Event("state", f"starting {cluster.title}"))


async def release(cluster: Cluster, succeeded: bool, tell: Listener) -> None:
    """Release a run's cluster. Never raises: a failure is reported."""
    try:
        await cluster.release(succeeded)
    except RayTrainWorkflowsError as exc:
        # the run is over either way, but the user must know about a per-run cluster that is left over
        what = f"the run's cluster could not be released: {exc.message}"
        tell(Event("state", what, level=logging.WARNING))


async def _left(cluster: Cluster, tell: Listener) -> None:
    try:
        await cluster.leave()
    except RayTrainWorkflowsError as exc:
        what = f"{cluster.title} could not be left, and may stay: {exc.message}"
        tell(Event("state", what, level=logging.WARNING))
