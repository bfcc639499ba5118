"""What one look sees of a run that changes meanwhile: real HTTP, real run directories, simulated jobs."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from plugin_core import run
from plugin_core.clusters.fake import FakeCluster, Play
from plugin_core.errors import StepTimeoutError
from plugin_core.runs.directory import Heartbeat, RunDir
from plugin_core.specs import Limits
from plugin_core.storage.location import Location
from plugin_core.supervisor.decide import Do, Job, decide
from plugin_core.supervisor.observer import Look, Observer
from plugin_core.supervisor.supervisor import Event, Supervisor, prepare, run_sync
from plugin_core.supervisor.where import Where
from tests.support.fake_steps import spec_at


def test_a_heartbeat_is_not_silent_because_querying_the_cluster_took_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API takes longer to fail than the heartbeat may be silent; meanwhile the driver's heartbeat moves."""
    spec = spec_at(tmp_path, limits=Limits(heartbeat_ttl_s=0.8, unreachable_timeout_s=0.1))

    async def slow(self: FakeCluster, request: web.Request) -> web.Response:
        await asyncio.sleep(1.0)
        return web.Response(status=500, text="away")

    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec, cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        observer = Observer(rundir, cluster, None)
        assert run_sync(observed(observer)).seen.job is Job.RUNNING
    monkeypatch.setattr(FakeCluster, "_get", slow)
    with FakeCluster() as broken:
        observer.where = Where(broken, rundir.uri)
        look = run_sync(observed(observer))
    assert look.seen.job is Job.UNREACHABLE
    assert look.seen.gave_up_on_cluster is False
    assert not look.seen.heartbeat_silent
    assert decide(look.seen).do is Do.WAIT


@pytest.mark.parametrize(("play", "waited"), [("killed", False), ("vanish", True)])
def test_a_heartbeat_is_waited_for_only_where_ray_has_lost_sight_of_the_driver(
    tmp_path: Path, play: Play, waited: bool
) -> None:
    """Ray knows the exit code of a driver that was killed. Where it fails a live job by mistake, it knows none."""
    told: list[Event] = []
    with FakeCluster(plays=[play, "succeed"]) as cluster:
        result = run(spec_at(tmp_path, limits=Limits(heartbeat_ttl_s=2.0)), cluster, told.append)
    assert result.run.attempt == 2
    assert any("its heartbeat is not silent yet" in event.text for event in told) is waited


def test_a_job_that_is_pending_too_long_is_stopped_as_a_timeout(tmp_path: Path) -> None:
    """Once stopped it is no longer pending, but that is still why it was stopped; nobody cancelled it."""

    class NeverStarts(FakeCluster):
        def _play(self, play: Play, rundir: RunDir, attempt: int) -> str:
            return "PENDING"

    with NeverStarts() as cluster, pytest.raises(StepTimeoutError, match="the job was still pending after limits"):
        run(spec_at(tmp_path, limits=Limits(heartbeat_ttl_s=0.2, scheduling_timeout_s=0.1)), cluster)
    assert list(cluster.jobs.values()) == ["STOPPED"]


async def observed(observer: Observer) -> Look:
    look = await observer.look()
    await observer.where.close()
    return look


def test_a_job_that_ends_in_the_middle_of_a_look_is_not_lost(tmp_path: Path) -> None:
    """Storage is read before the cluster is queried: what the job wrote in between must not restart it."""

    class EndsWhenAsked(FakeCluster):
        asked = 0

        async def _get(self, request: web.Request) -> web.Response:
            self.asked += 1
            if self.asked == 2:  # the heartbeat is silent by then
                name = request.match_info["id"]
                self.jobs[name] = await asyncio.to_thread(self._play, "succeed", RunDir.at(str(tmp_path / "run")), 1)
            return await super()._get(request)

    with EndsWhenAsked(plays=["hang", "succeed"]) as cluster:
        assert run(spec_at(tmp_path), cluster).run.attempt == 1
        assert cluster.asked >= 2
    assert len(cluster.jobs) == 1


@pytest.mark.parametrize("read", ["attempts", "has_result", "receipt"])
def test_a_job_that_ends_between_two_reads_of_a_look_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """The result is written before the end, so a look that sees the end must see the result."""
    has_result, then = RunDir.has_result, getattr(RunDir, read)
    calls: list[str] = []

    def first(rundir: RunDir) -> Any:
        calls.append("result")
        return has_result(rundir)

    def ends_before(rundir: RunDir, *args: Any) -> Any:
        if calls and "the job's end" not in calls:
            calls.append("the job's end")
            (name,) = cluster.jobs
            cluster.jobs[name] = cluster._play("succeed", rundir, 1)
        calls.append(read)
        return then(rundir, *args)

    with FakeCluster(plays=["hang", "succeed"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        monkeypatch.setattr(RunDir, "has_result", first)
        monkeypatch.setattr(RunDir, read, ends_before)
        ends_before.__name__ = read
        assert run_sync(Supervisor(rundir, cluster).run()).run.attempt == 1
        assert len(cluster.jobs) == 1
    assert "the job's end" in calls


def test_a_look_at_an_unchanged_run_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        observer = Observer(rundir, cluster, 0)

        async def looks() -> list[Look]:
            first = await observer.look()
            for name in ("read_since", "versions", "is_file"):
                counting(monkeypatch, name, asked)
            second = await observer.look()
            rundir.beat(1, Heartbeat(2, "training"))
            asked.clear()
            return [first, second, await observed(observer)]

        found = run_sync(looks())
    assert asked == ["versions attempts", "is_file result.json"], "even if the heartbeat moved"
    assert [look.receipt for look in found] == [rundir.receipt(1)] * 3


def counting(monkeypatch: pytest.MonkeyPatch, name: str, asked: list[str]) -> None:
    then = getattr(Location, name)

    def counted(place: Location, *args: Any) -> Any:
        asked.append(f"{name} {place.name}")
        return then(place, *args)

    monkeypatch.setattr(Location, name, counted)


def test_a_driver_of_an_earlier_version_is_not_silent(tmp_path: Path) -> None:
    """It writes its heartbeat in a different folder."""
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path, limits=Limits(heartbeat_ttl_s=0.3)), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        rundir.step.child("attempts", "001.beat.json").delete()
        observer = Observer(rundir, cluster, 0)

        async def silent() -> list[bool]:
            found = []
            for counter in (1, 2, 2):
                rundir.step.child("heartbeat", "001.json").write(b'{"counter": %d, "phase": "training"}' % counter)
                found.append((await observer.look()).seen.heartbeat_silent)
                await asyncio.sleep(0.4)
            await observer.where.close()
            return found

        assert run_sync(silent()) == [False, False, True]
        run_sync(observer.where.close())


def test_each_attempt_has_the_whole_time_for_its_cluster_to_answer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("plugin_core.supervisor.observer.time", SimpleNamespace(monotonic=lambda: now))
    limits = Limits(heartbeat_ttl_s=5, unreachable_timeout_s=50)
    with FakeCluster() as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path, limits=limits), cluster))
        cluster.answering = False
        observer = Observer(rundir, cluster, 0)
        gave_up = {}
        for attempt, times in ((1, (1000.0, 1060.0)), (2, (1061.0, 1070.0, 1120.0))):
            rundir.claim(attempt, cluster.address, cluster.session_name, cluster.identity)
            for now in times:
                gave_up[now] = run_sync(observer.look()).seen.gave_up_on_cluster
    assert gave_up == {1000.0: False, 1060.0: True, 1061.0: False, 1070.0: False, 1120.0: True}
