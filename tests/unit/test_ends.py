"""An attempt that died without a word is judged once: whoever fails the run over it records its end."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from plugin_core import run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import EXIT_NOT_SHARED, InfrastructureError, SpecError, StepTimeoutError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from plugin_core.supervisor.decide import NOT_INSTALLED
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at


@pytest.mark.parametrize("play", ["killed", "vanish"])
def test_the_call_after_a_killed_last_attempt_starts_the_next_one(tmp_path: Path, play: Any) -> None:
    spec = spec_at(tmp_path, limits=Limits(max_attempts=1, heartbeat_ttl_s=0.2))
    with FakeCluster(plays=[play, "succeed"]) as cluster:
        with pytest.raises(InfrastructureError, match="after 1 attempts"):
            run(spec, cluster)
        end = RunDir.of(spec).end(1)
        assert end is not None
        assert (end.outcome, end.cause) == ("infrastructure", "infrastructure")
        assert run(spec, cluster).run.attempt == 2
    assert cluster.submits == 2


def test_each_call_has_as_many_attempts_as_its_limits_say(tmp_path: Path) -> None:
    spec = spec_at(tmp_path, limits=Limits(max_attempts=2, heartbeat_ttl_s=0.2))
    with FakeCluster(plays=["killed"]) as cluster:
        for submits in (2, 4):
            with pytest.raises(InfrastructureError, match="after 2 attempts"):
                run(spec, cluster)
            assert cluster.submits == submits


FAILURES = [
    ("no Python there", {"driver_exit_code": 127}),
    ("storage that the driver cannot open", {"driver_exit_code": 2}),
    ("storage that is not shared", {"driver_exit_code": EXIT_NOT_SHARED}),
    ("our package is not installed", {"driver_exit_code": 1, "message": NOT_INSTALLED}),
    (
        "a package index that is down",
        {"error_type": "RUNTIME_ENV_SETUP_FAILURE", "message": "pip: https://me:secret@index.example/simple timed out"},
    ),
]


@pytest.mark.parametrize("job", [row[1] for row in FAILURES], ids=[row[0] for row in FAILURES])
def test_a_cluster_that_was_repaired_gets_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any]
) -> None:
    get = FakeCluster._get

    async def told(self: FakeCluster, request: web.Request) -> web.Response:
        if self.jobs.get(request.match_info["id"]) != "FAILED":
            return await get(self, request)
        return web.json_response({"submission_id": request.match_info["id"], "status": "FAILED", **job})

    monkeypatch.setattr(FakeCluster, "_get", told)
    # nothing is silent yet: such a job never had a heartbeat
    spec = spec_at(tmp_path, limits=Limits(heartbeat_ttl_s=60))
    with FakeCluster(plays=["vanish", "succeed"]) as cluster:
        with pytest.raises(SpecError):
            run(spec, cluster)
        end = RunDir.of(spec).end(1)
        assert end is not None
        assert end.outcome == "spec_error"
        assert "secret" not in end.message
        assert run(spec, cluster).run.attempt == 2
    assert cluster.submits == 2


def test_an_attempt_that_may_still_run_gets_no_end_when_its_call_fails(tmp_path: Path) -> None:
    """Its cluster is cut off, and its heartbeat has been silent for a moment: it may go on, and say so later."""
    limits = Limits(max_attempts=1, heartbeat_ttl_s=0.2, unreachable_timeout_s=0.3)
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path, limits=limits), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        cluster.answering = False
        with pytest.raises(InfrastructureError, match=r"limits\.unreachable_timeout_s has passed"):
            run_sync(Supervisor(rundir, cluster).run())
        assert rundir.end(1) is None
        cluster.answering = True
        (job,) = cluster.jobs
        cluster.jobs[job] = cluster._play("succeed", rundir, 1)
        assert run_sync(Supervisor(rundir, cluster).run()).run.attempt == 1


def test_the_end_of_an_attempt_that_died_after_the_time_limit_is_recorded(tmp_path: Path) -> None:
    spec = spec_at(tmp_path, limits=Limits(timeout_s=0.5, heartbeat_ttl_s=0.2))
    with FakeCluster(plays=["hang"]) as cluster:
        with pytest.raises(StepTimeoutError):
            run(spec, cluster)
        end = RunDir.of(spec).end(1)
        assert end is not None
        assert end.outcome == "timeout"
