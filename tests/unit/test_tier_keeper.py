"""A worker that keeps its checkpoints on its node and a peer, without Ray: with a slow peer, and a position in the data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError
from ray.train import Checkpoint

from devtools.chaos import wait_until
from plugin_core.driver.train.tiers import keeper as module
from plugin_core.driver.train.tiers.checkpoint import NodesCheckpoint
from plugin_core.driver.train.tiers.disk import KEPT, Disk
from plugin_core.driver.train.tiers.keeper import Keeper
from plugin_core.driver.train.tiers.records import Plan, Record, TierOptions, dump_plan
from plugin_core.errors import SpecError
from plugin_core.loops import rows
from tests.support.played_training import ROWS, Training


class SlowPeer:
    """Gets one part whenever `go` allows, or fails if `fails`."""

    go = threading.Semaphore(0)
    fails = False
    got: list[str] = []  # noqa: RUF012 - reset by `make`

    def __init__(self, disk: Disk, node: str):
        self._disk = disk

    def send(self, name: str, rank: int) -> None:
        type(self).go.acquire()  # for ever, if the test is over: the thread is a daemon
        if type(self).fails:
            raise RayError("its node is gone")
        list(self._disk.read(name, rank))
        type(self).got.append(name)

    def close(self) -> None:
        pass


Make = Callable[..., Keeper]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    monkeypatch.setattr(module, "Peer", SlowPeer)
    monkeypatch.setattr(module, "PEER_WAIT_S", 0.0)
    monkeypatch.setattr(module, "tell", lambda context, news, at_once=True: None)
    node = SimpleNamespace(get_node_id=lambda: "one")
    monkeypatch.setattr(module.ray, "get_runtime_context", lambda: node)
    SlowPeer.go, SlowPeer.fails, SlowPeer.got = threading.Semaphore(0), False, []

    def made(plan: Plan | None = None, every: int = 1000, upload: Any = None) -> Keeper:
        data = dump_plan(plan or Plan(peers={"one": "two"}))
        monkeypatch.setattr(module.kv, "get_in_worker", lambda name: data)
        options = TierOptions("ab-0", every, True, str(tmp_path / "nodes"))
        return Keeper(options, SimpleNamespace(get_world_rank=lambda: 0), upload or (lambda checkpoint, name: None))

    return made


def keep(keeper: Keeper, numbers: range, folder: Path, upload: Any = None) -> None:
    for number in numbers:
        source = folder / f"source-{number}"
        source.mkdir()
        (source / "step").write_text(str(number))
        keeper.keep(Checkpoint(str(source)), number, name(number), upload)


def name(number: int) -> str:
    return f"checkpoint_a001_{number:06}"


def test_a_slow_peer_gets_whole_parts_and_holds_up_one_report_until_it_has_caught_up(make: Make, tmp_path: Path) -> None:
    keeper = make()
    keep(keeper, range(1, 9), tmp_path)
    assert keeper._peer_is_behind
    SlowPeer.go.release()
    wait_until(lambda: len(SlowPeer.got) == 1)
    keep(keeper, range(9, 10), tmp_path)
    assert keeper._peer_is_behind, "it has got one, but another one waits"
    SlowPeer.go.release(5)
    wait_until(lambda: not keeper._peer_is_behind)
    assert SlowPeer.got[:2] == [name(1), name(2)], "they were not removed while they waited"
    keeper.end()


def test_a_peer_that_fails_has_not_caught_up(make: Make, tmp_path: Path) -> None:
    SlowPeer.fails = True
    keeper = make()
    keep(keeper, range(1, 4), tmp_path)
    assert keeper._peer_is_behind
    SlowPeer.go.release(2)
    wait_until(lambda: keeper._for_peer == [])
    assert keeper._peer_is_behind
    keeper.end()


def test_the_checkpoint_resumed_from_stays_until_others_have_taken_its_place(make: Make, tmp_path: Path) -> None:
    """Another rank may not have one yet, and newer parts that could not be used are on this node too."""
    disk = Disk(str(tmp_path / "nodes"), "one", "ab-0")
    disk.prepare()
    (tmp_path / "made").mkdir()
    for number in range(1, 1 + KEPT):
        disk.keep(name(number), 0, tmp_path / "made")
    keeper = make(Plan(number=KEPT, ordinal=1, resumes=Record(name(1), 1, 1, {0: ["one"]})))
    keep(keeper, range(KEPT + 1, KEPT + 2), tmp_path)
    keeper._pruner.submit(lambda: None).result()
    assert disk.part(name(1), 0).is_dir()
    keep(keeper, range(KEPT + 2, 2 * KEPT + 2), tmp_path)
    keeper.end()
    assert not disk.part(name(1), 0).is_dir()


def test_the_last_checkpoint_is_uploaded_as_its_report_said(make: Make, tmp_path: Path) -> None:
    uploaded: list[tuple[str, str]] = []
    # without a peer: the thread that sends to it could outlive the test
    keeper = make(Plan(), upload=lambda checkpoint, name: uploaded.append(("default", name)))
    keep(keeper, range(1, 2), tmp_path, lambda checkpoint, name: uploaded.append(("its own", name)))
    keeper.end()
    assert uploaded == [("its own", name(1))]


def test_rows_go_on_from_a_checkpoint_on_the_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Training(tmp_path).play(monkeypatch)
    (ranks,) = run.ranks(lambda: rows.from_items(range(ROWS), batch_size=10), 1)
    used = [row for batch in (next(iter(ranks)), next(iter(ranks))) for row in batch]
    run.save([ranks])
    disk = Disk(str(tmp_path / "nodes"), "one", "ab-0")
    disk.prepare()
    disk.keep(name(1), 0, run.checkpoint.path)
    run.checkpoint = NodesCheckpoint(Record(name(1), 1, 1, {0: ["one"]}), disk)
    again = rows.from_items(range(ROWS), batch_size=10)
    assert again.used == 20
    assert sorted([*used, *(row for batch in again for row in batch)]) == list(range(ROWS))


def test_a_checkpoint_on_the_nodes_without_a_position_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = Training(tmp_path).play(monkeypatch)
    disk = Disk(str(tmp_path / "nodes"), "one", "ab-0")
    disk.prepare()
    (tmp_path / "empty").mkdir()
    disk.keep(name(1), 0, tmp_path / "empty")
    run.checkpoint = NodesCheckpoint(Record(name(1), 1, 1, {0: ["one"]}), disk)
    with pytest.raises(SpecError, match=r"which has no rows\.json"):
        rows.from_items(range(ROWS), batch_size=10)
