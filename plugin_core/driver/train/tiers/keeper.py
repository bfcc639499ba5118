"""In a worker: keeps its part of each checkpoint on its node, on a peer and on storage."""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import Checkpoint, ReportedCheckpoint, ReportedCheckpointStatus

from plugin_core.driver.train.tiers.checkpoint import NodesCheckpoint
from plugin_core.driver.train.tiers.disk import KEPT, Disk
from plugin_core.driver.train.tiers.peer import Peer
from plugin_core.driver.train.tiers.records import Plan, TierOptions, parse_plan, plan_name
from plugin_core.ray_internals import kv
from plugin_core.ray_internals.polled_worker import tell

#: Seconds for which a report waits for the copy of the checkpoint before the last one to reach the peer. After that,
#: reports do not wait for the peer until it has caught up.
PEER_WAIT_S = 10.0

logger = logging.getLogger(__name__)

#: Uploads a checkpoint under a name.
Upload = Callable[[Checkpoint, str], Any]


class Keeper:
    """`context`: see `worker.worker_context`. `upload`: to storage. Every rank with a checkpoint keeps the same ones."""

    def __init__(self, options: TierOptions, context: Any, upload: Upload):
        data = kv.get_in_worker(plan_name(options.key))
        assert data is not None, "the driver makes the plan before workers start"
        self.plan: Plan = parse_plan(data)
        self._every, self._context, self._upload = options.storage_every, context, upload
        self._rank = context.get_world_rank()
        node = ray.get_runtime_context().get_node_id()
        self._disk = Disk(options.folder, node, options.key)
        self._disk.prepare()
        #: the checkpoint to resume from, if it is on the nodes
        self.resumes = NodesCheckpoint(self.plan.resumes, self._disk) if self.plan.resumes is not None else None
        self._ordinal = self.plan.ordinal
        self._last: tuple[str, Path | None, Upload] | None = None
        self._stored = ""
        self._uploads = ThreadPoolExecutor(1, thread_name_prefix="to storage")
        self._uploading: Future[None] | None = None
        self._names_uploading: frozenset[str] = frozenset()
        self._pruner = ThreadPoolExecutor(1, thread_name_prefix="removing old checkpoints")
        self._pruning: Future[None] | None = None
        self._to_peer: queue.Queue[str] = queue.Queue(1)
        #: the checkpoints that are still to be sent
        self._for_peer: list[str] = []
        self._peer: Peer | None = None
        self._peer_is_behind = False
        self._peer_node = self.plan.peers.get(node) if options.peer else None
        if self._peer_node is not None:
            threading.Thread(target=self._send, args=(self._peer_node,), daemon=True, name="to peer").start()

    def reported(self) -> list[ReportedCheckpoint]:
        """The checkpoint to resume from, as `ray.train.get_all_reported_checkpoints` lists stored ones."""
        if self.resumes is None:
            return []
        return [ReportedCheckpoint(self.resumes, self.resumes.record.metrics, ReportedCheckpointStatus.COMMITTED)]

    def keep(self, checkpoint: Checkpoint, number: int, name: str, upload: Upload | None = None) -> None:
        """Keep the checkpoint of the worker group's report `number`. Every `storage_every`th one goes to storage too:
        the call waits for the previous upload, but not for its own. Raises what an upload raised."""
        self._ordinal += 1
        part = self._kept(checkpoint, name)
        upload = upload or self._upload
        if self._ordinal % self._every == 0 or part is None:
            if self._uploading is not None:
                self._uploading.result()
            store = functools.partial(self._store, name, upload)
            if part is None:  # the loop may delete its folder
                store(Path(checkpoint.path))
            else:
                self._names_uploading = frozenset([name])
                self._uploading = self._uploads.submit(store, part)
        self._last = name, part, upload
        if part is not None:
            if self._pruning is not None:
                self._pruning.result()
            self._pruning = self._pruner.submit(self._prune)  # deleting large files takes longer than a report may
            self._queue_for_peer(name)
        digest = self._disk.digest(name, self._rank) if part is not None else ""
        tell(self._context, {"kept": number, "name": name, "ordinal": self._ordinal, "digest": digest}, at_once=False)

    def end(self) -> None:
        """The train function has returned: wait for storage to have the last checkpoint."""
        if self._uploading is not None:
            self._uploading.result()
        if self._last is not None:
            name, part, upload = self._last
            if name != self._stored and part is not None:
                self._store(name, upload, part)
        elif self.resumes is not None and self._rank == 0:
            # nothing was left to train, but the last worker group ended before storage had it all
            with self.resumes.as_directory() as folder:
                self._store(self.resumes.record.name, self._upload, Path(folder), whole=True)
        self._pruner.shutdown()
        if (peer := self._peer) is not None:  # the thread may give it up
            peer.close()

    def _prune(self) -> None:
        needed = {*self._names_uploading, *self._for_peer.copy()}  # other threads change the list meanwhile
        if self.resumes is not None and self._ordinal < self.plan.ordinal + KEPT:
            needed.add(self.resumes.record.name)  # other ranks may still need it, if this group is lost soon
        self._disk.prune(self._rank, frozenset(needed))

    def _kept(self, checkpoint: Checkpoint, name: str) -> Path | None:
        try:
            return self._disk.keep(name, self._rank, checkpoint.path)
        except OSError as exc:
            logger.warning("local_tier: %s could not be kept on this node, so it goes to storage: %s", name, exc)
            return None

    def _store(self, name: str, upload: Upload, part: Path, whole: bool = False) -> None:
        upload(Checkpoint(str(part)), name)
        self._stored = name
        tell(self._context, {"stored": name, "whole": whole})

    def _queue_for_peer(self, name: str) -> None:
        if self._peer_node is None:
            return
        self._for_peer.append(name)
        try:
            if self._peer_is_behind:
                self._to_peer.put_nowait(name)
            else:
                self._to_peer.put(name, timeout=PEER_WAIT_S)
        except queue.Full:
            self._peer_is_behind = True
            self._for_peer.remove(name)
            logger.warning("local_tier: the peer of this node is behind; %s is not copied there", name)

    def _send(self, node: str) -> None:
        while True:
            name = self._to_peer.get()
            try:
                self._peer = self._peer or Peer(self._disk, node)
                self._peer.send(name, self._rank)
                tell(self._context, {"peered": name, "node": node})
                if self._to_peer.empty():
                    self._peer_is_behind = False
            except (RayError, OSError) as exc:
                self._peer = None
                logger.warning("local_tier: %s was not copied to node %s: %s", name, node[:12], exc)
            self._for_peer.remove(name)
