"""Cancels of a run that arrive around the claim of an attempt, against the fake cluster."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.errors import StepCancelledError, StorageError
from plugin_core.runs.directory import AttemptEnd, Receipt, RunDir
from plugin_core.specs import Limits
from plugin_core.supervisor.cancel import acancel
from plugin_core.supervisor.interest import Interest
from plugin_core.supervisor.supervisor import Supervisor, prepare, run, run_sync
from tests.support.fake_steps import spec_at


def cancelling(cluster: FakeCluster, rundir: RunDir) -> Callable[[], None]:
    """Cancels the whole run from another process, once."""
    todo = [lambda: run_sync(acancel(rundir, cluster))]

    def cancel() -> None:
        if todo:
            assert todo.pop()() == "cancelled"

    return cancel


def no_job_ran(cluster: FakeCluster, rundir: RunDir) -> None:
    assert cluster.jobs == {}
    assert all(rundir.end(attempt) == AttemptEnd("cancelled", "the run was cancelled") for attempt in rundir.receipts())


def test_a_cancel_while_the_preparation_starts_the_cluster_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_at(tmp_path)
    with FakeCluster() as cluster:
        connect, cancel = cluster.connect, cancelling(cluster, RunDir.of(spec))

        async def start_slowly() -> JobsClient:
            await asyncio.to_thread(cancel)
            return await connect()

        monkeypatch.setattr(cluster, "connect", start_slowly)
        with pytest.raises(StepCancelledError):
            run(spec, cluster)
        assert cluster.jobs == {}
        assert RunDir.of(spec).receipts() == []


def test_a_cancel_between_the_attempts_of_an_earlier_call_and_the_first_look_is_obeyed(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    rundir = RunDir.of(spec)
    with FakeCluster() as cluster:
        for attempt in (1, 2):
            rundir.claim(attempt, cluster.address, cluster.session_name, cluster.identity)
            rundir.record_end(attempt, AttemptEnd("user_error", "fixed since"))
        prepared = run_sync(prepare(spec, cluster))
        cancelling(cluster, rundir)()
        with pytest.raises(StepCancelledError):
            run_sync(Supervisor(prepared, cluster).run())
        assert cluster.jobs == {}
        assert rundir.receipts() == [1, 2]


def test_a_call_after_such_a_cancel_wants_the_run_again(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    with FakeCluster() as cluster:
        prepared = run_sync(prepare(spec, cluster))
        cancelling(cluster, prepared)()
        assert run(spec, cluster).run.attempt == 1


@pytest.mark.parametrize("when", ["before the claim", "after the claim"])
def test_a_cancel_during_the_submit_starts_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The code is being uploaded, or the claim has just been made by a call that another process then takes over."""
    upload, claim = JobsClient.upload, RunDir.claim
    spec = spec_at(tmp_path)
    with FakeCluster() as cluster:
        cancel = cancelling(cluster, RunDir.of(spec))

        async def upload_slowly(self: JobsClient, *args: object) -> object:
            uploaded = await upload(self, *args)  # type: ignore[arg-type]
            await asyncio.to_thread(cancel)
            return uploaded

        def claim_late(self: RunDir, *args: object) -> Receipt | None:
            cancel()
            return claim(self, *args)  # type: ignore[arg-type]

        if when == "before the claim":
            monkeypatch.setattr(JobsClient, "upload", upload_slowly)
        else:
            monkeypatch.setattr(RunDir, "claim", claim_late)
        rundir = run_sync(prepare(spec, cluster))
        first = Supervisor(rundir, cluster)
        assert run_sync(first.submit()) is None
        # as an operator that defers: another process goes on
        next_process = RunDir.at(rundir.uri)
        next_process.old_cancels = rundir.old_cancels
        with pytest.raises(StepCancelledError, match=r"the run was cancelled$"):
            run_sync(Supervisor(next_process, cluster, since_attempt=first.since_attempt).run())
        no_job_ran(cluster, rundir)
        assert rundir.receipts() == ([] if when == "before the claim" else [1])
        assert run(spec, cluster).run.attempt == len(rundir.receipts())


def test_an_attempt_that_is_claimed_while_the_run_is_being_cancelled_is_cancelled_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir, latest = RunDir.at(str(tmp_path / "run")), RunDir.latest

    def latest_and_then_a_claim(self: RunDir) -> int:
        found = latest(self)
        if not found:
            self.claim(1, "http://x", "s")
        return found

    monkeypatch.setattr(RunDir, "latest", latest_and_then_a_claim)
    intent = rundir.cancel()
    assert (intent.cancel_through, intent.whole_through, len(intent.whole_run)) == (1, 1, 1)


@pytest.mark.parametrize("whole", [False, True], ids=["of the attempt", "of the run"])
def test_a_storage_error_does_not_turn_a_cancel_against_the_attempt_of_a_later_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """The look that finds the later attempt fails at its end; the one after it must not take that attempt for its own."""
    monkeypatch.setattr("plugin_core.supervisor.timings.POLL_FIRST_S", 0.01)
    show, failures = Interest.show, [StorageError("it does not answer")]

    async def show_once_in_vain(self: Interest, limits: Limits | None) -> None:
        if failures:
            raise failures.pop()
        await show(self, limits)

    with FakeCluster(plays=["hang"]) as cluster:
        spec = spec_at(tmp_path)
        rundir = run_sync(prepare(spec, cluster))
        rundir.claim(1, cluster.address, cluster.session_name, cluster.identity)
        call = Supervisor(rundir, cluster, since_attempt=0)
        if whole:
            rundir.cancel()
        later = run_sync(prepare(spec, cluster))
        later.claim(2, cluster.address, cluster.session_name, cluster.identity)
        run_sync(Supervisor(later, cluster, since_attempt=1).submit())
        monkeypatch.setattr(Interest, "show", show_once_in_vain)
        if whole:
            with pytest.raises(StepCancelledError, match="a later call restarted it"):
                run_sync(call.run())
        else:
            assert run_sync(acancel(rundir, cluster, attempt=1)) == "cancelled"
        assert failures == []
        assert list(cluster.jobs.values()) == ["RUNNING"]
        assert rundir.intent().cancel_through == 1
