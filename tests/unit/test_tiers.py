"""Checkpoints on the nodes, without Ray: the records, what the journal says, and what a spec may not ask for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugin_core import CheckpointConfig, FailureConfig, LocalTier, RunConfig, TrainSpec, TuneSpec
from plugin_core.driver.train.journal_callback import JournalCallback
from plugin_core.driver.train.snapshot import RunState
from plugin_core.driver.train.tiers import callback
from plugin_core.driver.train.tiers.callback import TierCallback
from plugin_core.driver.train.tiers.records import (
    Plan,
    Record,
    TierOptions,
    dump_plan,
    dump_records,
    parse_plan,
    parse_records,
    tier_options,
)
from plugin_core.errors import SpecError, StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.runs.journal import index_of
from plugin_core.specs import TorchConfig
from plugin_core.specs.validation import ValidationConfig
from plugin_core.storage.stored_files import parse_line
from plugin_core.supervisor.story import phase_in_words

NAME = "checkpoint_a001_000001"


def test_plan_and_records_come_back_as_they_were() -> None:
    record = Record(NAME, 7, 3, {0: ["one", "two"], 12: ["two"]}, {"loss": 0.5}, {0: "ab", 12: "cd"})
    assert parse_records(dump_records([record], b"{}\n")) == ([record], b"{}\n")
    assert parse_records(None) == ([], b"")
    plan = Plan(7, 3, record, {"one": "two"})
    assert parse_plan(dump_plan(plan)) == plan
    assert parse_plan(dump_plan(Plan())) == Plan()


def context(tmp_path: Path, **fields: Any) -> Any:
    spec = spec_with(tmp_path, LocalTier(storage_every=4))
    rundir = RunDir.of(spec)
    return SimpleNamespace(**{"spec": spec, "rundir": rundir, "own_job": True, **fields})


def spec_with(tmp_path: Path, tier: LocalTier | None = None, **fields: Any) -> TrainSpec:
    run_config = RunConfig(
        name="run",
        storage_path=str(tmp_path),
        checkpoint_config=CheckpointConfig(local_tier=tier or LocalTier()),
        **fields.pop("run_config", {}),
    )
    return TrainSpec(train_loop_per_worker="devtools.steps:counting_loop", run_config=run_config, **fields)


def test_the_folder_for_temporary_files_is_that_of_the_workers(tmp_path: Path) -> None:
    """The driver reads and removes what they keep, but has other variables."""
    run_config = {"worker_runtime_env": {"env_vars": {"TMP": "/third", "TMPDIR": "/first"}}}
    found = tier_options(context(tmp_path, spec=spec_with(tmp_path, run_config=run_config)), 0)
    assert found is not None
    assert found.folder == "/first"
    given = tier_options(context(tmp_path, spec=spec_with(tmp_path, LocalTier(folder="/given"), run_config=run_config)), 0)
    assert given is not None
    assert given.folder == "/given"


def test_each_run_has_a_key_of_its_own(tmp_path: Path) -> None:
    first = tier_options(context(tmp_path), 0)
    assert first is not None
    assert (first.storage_every, first.peer, first.folder) == (4, True, None)
    assert tier_options(context(tmp_path), 0) == first, "the next attempt has the same"
    dropped = tier_options(context(tmp_path), 2)
    assert dropped is not None
    assert dropped.key == first.key[:-1] + "2", "what a policy dropped is under another one"
    (tmp_path / "run" / ".step" / "tier").unlink()
    again = tier_options(context(tmp_path), 0)
    assert again is not None
    assert again.key != first.key, "a run of the same name, after this one was deleted"
    with pytest.raises(SpecError, match="local_tier: got it in a search"):
        tier_options(context(tmp_path, own_job=False), 0)
    (tmp_path / "run" / ".step" / "tier").write_text("../../elsewhere")
    with pytest.raises(StorageError, match="is damaged; expected 32 hexadecimal digits"):
        tier_options(context(tmp_path), 0)


@pytest.mark.parametrize(("fields", "what"), [
    ({"validation": ValidationConfig(fn="devtools.steps:counting_loop")}, "got it with validation"),
    ({"torch_config": TorchConfig(fault_tolerance="torchft")}, "got it with torch_config.fault_tolerance"),
    ({"run_config": {"failure_config": FailureConfig(relax_collectives_on_preemption=True)}}, "relax_collectives"),
])  # fmt: skip
def test_what_needs_each_checkpoint_on_storage_is_refused(tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    with pytest.raises(SpecError, match=rf"run_config\.checkpoint_config\.local_tier: .*{what}"):
        spec_with(tmp_path, **fields)


def test_the_folder_is_an_absolute_path() -> None:
    with pytest.raises(SpecError, match="folder: got 'nodes'; expected an absolute path"):
        LocalTier(folder="nodes")


def test_a_search_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"train\.run_config\.checkpoint_config\.local_tier: got it in a search"):
        TuneSpec(
            train=spec_with(tmp_path),
            param_space={"train_loop_config": {"lr": {"grid_search": [1, 2]}}},
            metric="loss",
            mode="min",
        )


def test_the_journal_tells_what_came_to_storage_later() -> None:
    lines = [
        {"report": 1, "index": 1, "metrics": {"loss": 0.5}, "checkpoint": None, "time": 1.0},
        {"report": 2, "index": 2, "metrics": {"loss": 0.4}, "checkpoint": None, "time": 2.0},
        {"phase": "stored", "index": 1, "metrics": {"loss": 0.5}, "checkpoint": NAME, "time": 3.0},
        {"phase": "resuming", "index": 2, "checkpoint": "checkpoint_a001_000002", "counters": ", step 5", "time": 4.0},
    ]
    entries = [entry for line in lines if (entry := parse_line(json.dumps(line).encode())) is not None]
    history = History.of(entries, [NAME], "loss")
    assert (history.reports, history.last_index, history.checkpointed, history.unranked) == (2, 2, 1, 0)
    assert index_of(history.checkpoints[NAME]) == 1
    assert phase_in_words(entries[2]) == f"{NAME} is on storage"
    assert phase_in_words(entries[3]) == "resuming from checkpoint_a001_000002, step 5, which the nodes kept"


@pytest.mark.parametrize("phase", ["stored", "validated", "resuming"])
def test_a_journal_that_anybody_wrote_is_no_error(phase: str) -> None:
    assert parse_line(json.dumps({"phase": phase}).encode()) is None
    assert parse_line(json.dumps({"phase": phase, "checkpoint": "../up"}).encode()) is None
    entry = parse_line(json.dumps({"phase": phase, "checkpoint": NAME}).encode())
    assert entry is not None
    assert History.of([entry], [NAME]).reports == 0
    assert phase_in_words(entry)


class PlayedGroup:
    """What the callback sees of a worker group of two ranks on two nodes, of which rank 0 has a checkpoint."""

    def __init__(self) -> None:
        self.news: list[tuple[int, dict[str, Any]]] = []
        self.registered: list[str] = []
        self.warned: list[str] = []
        self._registered = SimpleNamespace(_current_report_index=0)
        self.callback: TierCallback | None = None

    def get_workers(self) -> list[Any]:
        return [
            SimpleNamespace(
                distributed_context=SimpleNamespace(world_rank=rank), metadata=SimpleNamespace(node_id=f"node-{rank}")
            )
            for rank in (0, 1)
        ]

    def report(self, metrics: dict[str, Any]) -> None:
        self._registered._current_report_index += 1
        assert self.callback is not None
        self.callback.after_report(None, [metrics, metrics])


Played = tuple[PlayedGroup, TierCallback, list[tuple[str, int]]]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Played:
    group, stored = PlayedGroup(), list[tuple[str, int]]()
    monkeypatch.setattr(callback.kv, "put_in_driver", lambda name, data: None)
    monkeypatch.setattr(callback, "register_stored", lambda group, name, metrics: group.registered.append(name))
    journal: Any = SimpleNamespace(
        index=0,
        unwritten=lambda: b"",
        kept_on_nodes=lambda name, metrics: None,
        stored=lambda name, index, metrics: stored.append((name, index)),
    )
    options = TierOptions("ab-0", 2, True, None)
    journal.warn = group.warned.append
    group.callback = TierCallback(options, journal, RunDir.at(str(tmp_path)), 1)
    group.callback._records = []
    group.callback.after_worker_group_start(group)
    return group, group.callback, stored


def kept(name: str, number: int) -> dict[str, Any]:
    return {"kept": number, "name": name, "ordinal": number, "digest": f"digest of {name}"}


def test_a_checkpoint_that_is_on_storage_before_its_report_is_registered_counts(played: Played) -> None:
    group, tier, stored = played
    group.news += [(0, kept(NAME, 1)), (0, {"stored": NAME, "whole": False})]
    tier.after_worker_group_poll_status(None)
    assert stored == [], "Ray does not know its report yet"
    group.report({"loss": 0.5})
    tier.after_worker_group_poll_status(None)
    tier.after_worker_group_poll_status(None)
    assert (stored, group.registered) == ([(NAME, 1)], [NAME]), "once"


def test_a_checkpoint_is_registered_once_all_ranks_have_brought_theirs(played: Played) -> None:
    group, tier, stored = played
    group.news += [(0, kept(NAME, 1)), (1, kept(NAME, 1))]
    group.report({"loss": 0.5})
    group.news += [(1, {"stored": NAME, "whole": False}), (1, {"peered": NAME, "node": "node-0"})]
    tier.after_worker_group_poll_status(None)
    assert stored == []
    assert [record.nodes for record in tier._records or []] == [{0: ["node-0"], 1: ["node-1", "node-0"]}]
    group.news += [(0, {"stored": NAME, "whole": False})]
    tier.before_worker_group_shutdown(group)
    assert stored == [(NAME, 1)]


def test_what_one_rank_could_not_keep_is_no_checkpoint_of_the_nodes(played: Played) -> None:
    """Its disk is full, so its part went to storage."""
    group, tier, stored = played
    group.news += [(0, {"stored": NAME, "whole": False}), (0, {**kept(NAME, 1), "digest": ""})]
    group.report({"loss": 0.5})
    tier.after_worker_group_poll_status(None)
    assert tier._records == []
    assert stored == [(NAME, 1)]


def test_the_newest_three_are_recorded(played: Played) -> None:
    group, tier, _ = played
    for number in range(1, 6):
        group.news.append((0, kept(f"checkpoint_a001_{number:06}", number)))
        group.report({"loss": 1 / number})
    assert [record.ordinal for record in tier._records or []] == [3, 4, 5]
    group.report({"loss": 0.0})
    assert len(tier._records or []) == 3, "a report without a checkpoint"


def test_only_what_may_reach_storage_is_remembered_until_it_does(played: Played) -> None:
    group, tier, _ = played
    for number in range(1, 101):
        group.news.append((0, kept(f"checkpoint_a001_{number:06}", number)))
        group.report({"loss": 1 / number})
    assert [record.ordinal % 2 for record in tier._to_storage.values()] == [0] * 50, "every second one"


def test_ranks_that_name_a_checkpoint_differently_are_told_so(played: Played) -> None:
    group, tier, _ = played
    group.news += [(0, kept("mine_a001_000001", 1)), (1, kept(NAME, 1))]
    group.report({"loss": 0.5})
    assert (tier._records, tier._to_storage) == ([], {})
    (warned,) = group.warned
    assert warned.startswith(f"checkpoint_dir_name: got mine_a001_000001 and {NAME}; expected the same on all ranks")


def test_a_copy_that_a_dead_worker_could_not_tell_of_is_found(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, there = played[1], {("node-1", 0): "", ("node-1", 1): ""}
    monkeypatch.setattr(callback, "_alive", lambda: {"node-1", "node-2"})
    monkeypatch.setattr(tier, "_ask", lambda node, _, ranks: {rank: there.get((node, rank), "missing") for rank in ranks})
    record = Record(NAME, 1, 1, {0: ["node-0"], 1: ["node-1"]}, {})
    assert tier._intact(record) == {0: ["node-1"], 1: ["node-1"]}
    del there["node-1", 0]
    assert tier._intact(record) is None


def test_reports_that_a_killed_driver_could_not_write_are_not_lost(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.write_spec(spec_with(tmp_path))
    before = JournalCallback(rundir.uri, 1, RunState())
    report: Any = SimpleNamespace(checkpoint=None, validation=False)
    for step in range(3):
        before.after_report(report, [{"step": step}])
    lines = before.unwritten()
    again = JournalCallback(rundir.uri, 2, RunState(reports=1, index=0))
    again.restore(lines, 2)
    again.restore(lines, 2)
    entries = list(filter(None, map(parse_line, again.unwritten().splitlines())))
    assert [(entry["attempt"], entry["report"], entry["metrics"]) for entry in entries] == [(1, 2, {"step": 1})], (
        "the first is in the journal, the third is made again"
    )
    assert again.unwritten()
