"""What a look sees of a run that changes while it is looked at: real HTTP, real run directories, played jobs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from plugin_core import run
from plugin_core.decide import Do, Job, decide
from plugin_core.observe import Look, Observer
from plugin_core.rundir import RunDir
from plugin_core.specs import Limits
from plugin_core.supervisor import Supervisor, prepare, run_sync
from plugin_core.testing import FakeCluster
from tests.unit.fake_steps import spec_at


def test_a_heartbeat_is_not_silent_because_asking_the_cluster_took_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API takes longer to fail than the heartbeat may be still; meanwhile the driver beats."""
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
        observer.cluster = broken
        look = run_sync(observed(observer))
    assert look.seen.job is Job.UNREACHABLE
    assert look.seen.gave_up_on_cluster is False
    assert not look.seen.heartbeat_silent
    assert decide(look.seen).do is Do.WAIT


async def observed(observer: Observer) -> Look:
    look = await observer.look()
    await observer.close()
    return look


def test_a_job_that_ends_between_the_two_halves_of_a_look_is_not_lost(tmp_path: Path) -> None:
    """Storage is read before the cluster is asked: what the job wrote in between must not start it again."""

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


@pytest.mark.parametrize("read", ["latest", "heartbeat", "intent", "receipt", "end"])
def test_a_job_that_ends_between_two_readings_of_a_look_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """The result is written before the end; whoever sees the end has to see the result."""
    result, then = RunDir.result, getattr(RunDir, read)
    calls: list[str] = []

    def first(rundir: RunDir) -> Any:
        calls.append("result")
        return result(rundir)

    def ends_before(rundir: RunDir, *args: Any) -> Any:
        if calls and "the job's end" not in calls:
            calls.append("the job's end")
            (name,) = cluster.jobs
            cluster.jobs[name] = cluster._play("succeed", rundir, 1)
        return then(rundir, *args)

    with FakeCluster(plays=["hang", "succeed"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        monkeypatch.setattr(RunDir, "result", first)
        monkeypatch.setattr(RunDir, read, ends_before)
        assert run_sync(Supervisor(rundir, cluster).run()).run.attempt == 1
        assert len(cluster.jobs) == 1
    assert "the job's end" in calls
