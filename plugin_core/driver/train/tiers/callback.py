"""In the driver: knows which checkpoints all ranks have kept on their nodes, and lets workers resume from the newest."""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import ray

from plugin_core.driver.train.journal_callback import JournalCallback
from plugin_core.driver.train.tiers.disk import KEPT, Disk
from plugin_core.driver.train.tiers.records import (
    KEPT_S,
    Plan,
    Record,
    TierOptions,
    dump_plan,
    dump_records,
    parse_records,
    plan_name,
    records_name,
)
from plugin_core.ray_internals import kv
from plugin_core.ray_internals.controller import (
    ReportCallback,
    WorkerGroupCallback,
    register_stored,
    reports_so_far,
    take_news,
    worker_nodes,
)
from plugin_core.ray_internals.on_node import call_on
from plugin_core.runs.directory import RunDir
from plugin_core.storage.checkpoint_manifest import highest_number, order
from plugin_core.storage.threads import parallel

#: Seconds for a node to read its parts of a checkpoint.
CHECK_S = 600.0
#: Seconds for a node to remove them.
REMOVE_S = 30.0
#: Stands for all ranks, if one brought the whole checkpoint to storage.
ALL = -1

logger = logging.getLogger(__name__)


class TierCallback(ReportCallback, WorkerGroupCallback):
    """Must hear of a report before `journal` does."""

    def __init__(self, options: TierOptions, journal: JournalCallback, rundir: RunDir, attempt: int):
        self._options, self._journal, self._rundir, self._attempt = options, journal, rundir, attempt
        self._records: list[Record] | None = None
        #: what the driver before this one could no longer write to the journal
        self._lines = b""
        self._has_new = False
        #: the checkpoints that may reach storage
        self._to_storage: dict[str, Record] = {}
        #: name → the ranks whose part is on storage, or ALL; a small part may be there before its report is registered
        self._done: dict[str, set[int]] = defaultdict(set)
        self._kept: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        self._nodes: dict[int, str] = {}
        self._group: Any = None

    # ---- before workers start

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        if self._records is None:
            self._records, self._lines = parse_records(kv.get_in_worker(records_name(self._options.key)))
        nodes = worker_nodes(workers)
        found = self._newest()
        names = [*(record.name for record in self._records), *self._rundir.location.names()]
        self._kept.clear()
        self._to_storage.clear()
        self._done.clear()
        plan = Plan(highest_number(names, self._attempt), found.ordinal if found else 0, found, self._peers(set(nodes)))
        kv.put_in_driver(plan_name(self._options.key), dump_plan(plan))
        self._put()
        for name in (plan_name, records_name):
            kv.expire_in_driver(name(self._options.key), KEPT_S)
        return {}

    def _newest(self) -> Record | None:
        """The newest checkpoint that is complete on live nodes, unless storage has a newer one. Forgets the others."""
        assert self._records is not None
        while self._records and self._records[-1].index > self._journal.start:
            record = self._records[-1]
            if (where := self._intact(record)) is not None:
                record.nodes = where
                self._journal.restore(self._lines, record.index)
                self._lines = b""
                self._journal.resume_from(record.name, record.index, record.metrics)
                return record
            self._records.pop()
        self._records.clear()
        self._journal.kept_on_nodes("", {})
        return None

    def _intact(self, record: Record) -> dict[int, list[str]] | None:
        """Which nodes have each rank's part, read byte by byte; None if a part is nowhere."""
        alive = _alive()
        where: dict[int, list[str]] = {rank: [] for rank in record.nodes}
        known = {node: [rank for rank, nodes in record.nodes.items() if node in nodes] for node in alive}
        for node, rank, problem in self._asked(record, known):
            if problem:
                self._journal.warn(f"the copy of {record.name} (rank {rank}) on node {node[:12]} cannot be used: {problem}")
            else:
                where[rank].append(node)
        # a worker may have died before it could say that its peer has the part too
        lost = [rank for rank in where if not where[rank]]
        others = {node: [rank for rank in lost if node not in record.nodes[rank]] for node in alive}
        for node, rank, problem in self._asked(record, others):
            if not problem:
                where[rank].append(node)
        return where if all(where.values()) else None

    def _asked(self, record: Record, ranks: Mapping[str, list[int]]) -> Iterator[tuple[str, int, str]]:
        """For each node and rank: what is wrong with that part there."""
        nodes = [node for node in ranks if ranks[node]]
        digests = {node: {rank: record.digests.get(rank, "") for rank in ranks[node]} for node in nodes}
        answers = parallel(lambda node: self._ask(node, record.name, digests[node]), nodes)
        for node, problems in zip(nodes, answers, strict=True):
            for rank in ranks[node]:
                yield node, rank, problems[rank] if problems is not None else "the node does not answer"

    def _ask(self, node: str, name: str, digests: dict[int, str]) -> dict[int, str] | None:
        return call_on(node, functools.partial(self._disk(node).problems, name, digests), CHECK_S)

    def _disk(self, node: str) -> Disk:
        return Disk(self._options.folder, node, self._options.key)

    def _peers(self, nodes: set[str]) -> dict[str, str]:
        """Each worker's node has the next one as its peer; a single one has any other live node."""
        ring = sorted(nodes)
        if len(ring) == 1:
            others = sorted(_alive() - nodes)
            return {ring[0]: others[0]} if others else {}
        return {node: ring[(at + 1) % len(ring)] for at, node in enumerate(ring)}

    # ---- while they train

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._group = worker_group
        self._nodes = dict(enumerate(worker_nodes(worker_group.get_workers())))

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        self._take_news()
        self._register_whole()
        self._group = None

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        self._take_news()
        kept = self._kept.pop(reports_so_far(self._group), {})
        if not kept:
            return
        one = kept[min(kept)]
        if names := sorted({each["name"] for each in kept.values()} - {one["name"]}):
            self._journal.warn(
                f"checkpoint_dir_name: got {one['name']} and {names[0]}; expected the same on all ranks, with local_tier."
                " The checkpoint is not used"
            )
            return
        nodes = {rank: [self._nodes[rank]] for rank in kept}
        digests = {rank: each["digest"] for rank, each in kept.items()}
        index = self._journal.index + 1
        record = Record(one["name"], index, one["ordinal"], nodes, metrics[0] if metrics else {}, digests)
        on_nodes = all(each["digest"] for each in kept.values())
        if not on_nodes or record.ordinal % self._options.storage_every == 0:
            self._to_storage[record.name] = record
        if on_nodes:
            assert self._records is not None
            self._records = [*self._records, record][-KEPT:]
            self._has_new = True
            self._journal.kept_on_nodes(record.name, record.metrics)

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Called after the reports of the same poll have been handled."""
        self._take_news()
        if self._has_new:
            self._put()
        self._register_whole()

    def _take_news(self) -> None:
        for rank, news in take_news(self._group) if self._group is not None else []:
            if "kept" in news:
                self._kept[news["kept"]][rank] = news
            elif "peered" in news:
                self._peered(rank, news["peered"], news["node"])
            else:
                self._done[news["stored"]].add(ALL if news["whole"] else rank)

    def _peered(self, rank: int, name: str, node: str) -> None:
        for record in self._records or []:
            if record.name == name and rank in record.nodes and node not in record.nodes[rank]:
                record.nodes[rank].append(node)
                self._has_new = True

    def _register_whole(self) -> None:
        """Tell Ray about the checkpoints that are complete on storage by now."""
        kept = {record.name: record for record in self._records or []} | self._to_storage
        for name, done in sorted(self._done.items(), key=lambda item: order(item[0])):
            record = kept.get(name)
            if record is None or (ALL not in done and not done >= set(record.nodes)):
                continue
            for older in [each.name for each in kept.values() if each.index <= record.index]:
                self._to_storage.pop(older, None)
                self._done.pop(older, None)
            self._journal.stored(record.name, record.index, record.metrics)
            register_stored(self._group, record.name, record.metrics)

    def _put(self) -> None:
        self._has_new = False
        kv.put_in_driver(records_name(self._options.key), dump_records(self._records or [], self._journal.unwritten()))

    # ---- when the run is over

    def clean(self) -> None:
        """Remove all checkpoints from the nodes: storage has the last one."""
        parallel(lambda node: call_on(node, self._disk(node).remove, REMOVE_S), list(_alive()))
        for name in (plan_name, records_name):
            kv.expire_in_driver(name(self._options.key), 0)


def _alive() -> set[str]:
    """The ids of the live nodes."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
