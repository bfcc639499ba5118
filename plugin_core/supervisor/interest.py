"""Tells a run's driver, and a cluster that it shares, that the run is wanted, as long as somebody follows it."""

from __future__ import annotations

import time

from plugin_core.errors import CLUSTER_ERRORS
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from plugin_core.storage.threads import Threads
from plugin_core.supervisor.events import Event, Listener
from plugin_core.supervisor.where import Where


class Interest:
    def __init__(self, rundir: RunDir, where: Where, tell: Listener):
        self._rundir, self._where, self._tell = rundir, where, tell
        self._storage_due = self._cluster_due = 0.0
        #: what was last told about a queue that the cluster waits in
        self.waits_for = ""

    def waits(self, why: str) -> None:
        """Tell where the cluster waits for its turn, each different answer once."""
        if why != self.waits_for:
            self._tell(Event("state", why))
        self.waits_for = why

    async def show(self, limits: Limits | None) -> None:
        """Show interest, but only once in a while. Raises StorageError; an unresponsive cluster is only reported."""
        now = time.monotonic()
        limit = limits.orphan_timeout_s if limits else None
        if limit is not None and now >= self._storage_due:
            self._storage_due = now + limit / 4
            await Threads.of(self._rundir.uri)(self._rundir.show_interest)
        every = self._where.cluster.keep_every_s
        if every is not None and now >= self._cluster_due:
            self._cluster_due = now + every
            try:
                await self._where.cluster.keep()
            except CLUSTER_ERRORS as exc:
                self._tell(Event("state", f"the lease on the shared cluster could not be renewed: {exc.message}"))
