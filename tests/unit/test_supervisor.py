"""The loop around `decide`, against the fake cluster: real HTTP, real run directories, simulated jobs."""

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from plugin_core import EvaluateSpec, LocalCluster, RayCluster, ScalingConfig, TrainSpec, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
    InfeasibleError,
    InfrastructureError,
    SpecChangedError,
    SpecError,
    StepCancelledError,
    StepTimeoutError,
    UserCodeError,
)
from plugin_core.runs.directory import Intent, RunDir
from plugin_core.specs import Limits
from plugin_core.supervisor.cancel import acancel
from plugin_core.supervisor.supervisor import Event, Supervisor, prepare, run_sync
from tests.support.fake_steps import LOOP, spec_at


def test_a_step_runs_and_its_result_is_returned(tmp_path: Path) -> None:
    with FakeCluster(metrics={"loss": 0.1}) as cluster:
        result = run(spec_at(tmp_path), cluster)
    assert result.metrics == {"loss": 0.1}
    assert result.run.attempt == 1
    assert list(cluster.jobs.values()) == ["SUCCEEDED"]


def test_the_same_call_after_success_starts_no_job_and_queries_no_cluster(tmp_path: Path) -> None:
    with FakeCluster() as cluster:
        first = run(spec_at(tmp_path), cluster)
    assert run(spec_at(tmp_path), RayCluster("http://127.0.0.1:9")) == first
    assert cluster.submits == 1


def test_a_different_spec_under_the_same_name_is_rejected_without_a_job(tmp_path: Path) -> None:
    with FakeCluster() as cluster:
        run(spec_at(tmp_path), cluster)
        with pytest.raises(SpecChangedError, match=r"train_loop_config\.lr"):
            run(spec_at(tmp_path, train_loop_config={"lr": 1}), cluster)
    assert cluster.submits == 1


def test_a_lost_job_is_followed_by_the_next_attempt(tmp_path: Path) -> None:
    with FakeCluster(plays=["vanish", "infrastructure", "succeed"]) as cluster:
        result = run(spec_at(tmp_path), cluster)
    assert result.run.attempt == 3
    assert list(cluster.jobs.values()) == ["FAILED", "FAILED", "SUCCEEDED"]


def test_attempts_are_bounded(tmp_path: Path) -> None:
    limits = Limits(max_attempts=2, heartbeat_ttl_s=0.2)
    with FakeCluster(plays=["infrastructure"]) as cluster, pytest.raises(InfrastructureError, match="after 2 attempts"):
        run(spec_at(tmp_path, limits=limits), cluster)
    assert len(cluster.jobs) == 2


def test_a_user_error_is_raised_with_its_traceback_and_not_retried(tmp_path: Path) -> None:
    with FakeCluster(plays=["user_error", "succeed"]) as cluster:
        with pytest.raises(UserCodeError) as caught:
            run(spec_at(tmp_path), cluster)
        assert "Traceback" in caught.value.details
        assert len(cluster.jobs) == 1
        assert run(spec_at(tmp_path), cluster).run.attempt == 2, "a retry by the engine continues the same run"


def test_a_second_orchestrator_attaches_to_the_live_job(tmp_path: Path) -> None:
    """Five pairs of concurrent calls: one job per pair."""
    for number in range(5):
        spec = spec_at(tmp_path / str(number))
        with FakeCluster() as cluster:
            start, results = threading.Barrier(2), []

            def call(
                spec: TrainSpec = spec, cluster: FakeCluster = cluster, start: Any = start, results: Any = results
            ) -> None:
                start.wait()
                results.append(run(spec, cluster))

            threads = [threading.Thread(target=call) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(cluster.jobs) == 1
        assert len(results) == 2
        assert results[0] == results[1]


def test_a_receipt_whose_writer_died_before_the_submit_is_submitted_by_the_next_call(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    with FakeCluster() as cluster:
        rundir = run_sync(prepare(spec, cluster))
        receipt = rundir.claim(1, cluster.address, cluster.session_name)
        run(spec, cluster)
        assert receipt is not None
        assert list(cluster.jobs) == [receipt.submission_id]


def test_an_api_that_answers_500_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plugin_core.supervisor.timings.LEAVE_S", 1.0)  # the API never comes back for the end of the log
    spec = spec_at(tmp_path)
    events: list[Event] = []
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec, cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        cluster.answering = False

        def listen(event: Event) -> None:
            events.append(event)
            if "cannot be queried" in event.text:  # meanwhile the job finishes; the API is still down
                receipt = rundir.receipt(1)
                assert receipt is not None
                cluster.jobs[receipt.submission_id] = cluster._play("succeed", rundir, 1)

        result = run_sync(Supervisor(rundir, cluster, listener=listen).run())
    assert result.run.attempt == 1
    assert cluster.submits == 1
    assert "the end of the log" in events[-2].text


def test_a_token_rejected_midway_says_nothing_about_the_job(tmp_path: Path) -> None:
    """Rotated while the step runs: the call waits for the job. A call that never had a valid token fails at once."""
    spec = spec_at(tmp_path)
    with FakeCluster(plays=["hang"], token="old") as cluster:
        ours = RayCluster(cluster.address, "old")
        rundir = run_sync(prepare(spec, ours))
        events: list[Event] = []

        def listen(event: Event) -> None:
            events.append(event)
            if event.text == "the job is running":
                cluster.token = "new"
            if "returned 401" in event.text:
                cluster.token = "old"
                receipt = rundir.receipt(1)
                assert receipt is not None
                cluster.jobs[receipt.submission_id] = cluster._play("succeed", rundir, 1)

        assert run(spec, ours, listen).run.attempt == 1
        assert any("its cluster cannot be queried (token: " in event.text for event in events)
        assert cluster.submits == 1
        (tmp_path / "run/.step/result.json").unlink()
        with pytest.raises(ClusterRefusedError, match="returned 401"):
            run(spec, RayCluster(cluster.address, "wrong"))


@pytest.mark.parametrize(("status", "error"), [(400, SpecError), (500, InfrastructureError)])
def test_submitting_to_a_cluster_that_accepts_no_job_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    monkeypatch.setattr("plugin_core.supervisor.timings.POLL_FIRST_S", 0.01)

    async def refuse(self: FakeCluster, request: web.Request) -> web.Response:
        return web.Response(status=status, text="runtime_env is not well-formed")

    monkeypatch.setattr(FakeCluster, "_submit", refuse)
    with FakeCluster() as cluster, pytest.raises(error, match="runtime_env is not well-formed"):
        run(spec_at(tmp_path), cluster)


def test_cancel_stops_the_job_is_idempotent_and_is_recorded(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec, cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        assert [run_sync(acancel(rundir, cluster)) for _ in range(2)] == ["cancelled", "cancelled"]
        assert list(cluster.jobs.values()) == ["STOPPED"]
        assert rundir.end(1).outcome == "cancelled"
        with pytest.raises(StepCancelledError):
            run_sync(Supervisor(rundir, cluster, since_attempt=0).run())


def test_cancel_after_the_end_changes_nothing(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    with FakeCluster() as cluster:
        run(spec, cluster)
        assert run_sync(acquired(spec, cluster)) == "finished"
    assert RunDir.of(spec).intent() == Intent()


async def acquired(spec: TrainSpec, cluster: FakeCluster) -> str:
    return await acancel(RunDir.of(spec), cluster)


def test_a_step_over_its_time_limit_is_stopped(tmp_path: Path) -> None:
    limits = Limits(timeout_s=0.5, heartbeat_ttl_s=0.2)
    with FakeCluster(plays=["hang"]) as cluster, pytest.raises(StepTimeoutError, match=r"limits\.timeout_s \(0\.5 s\)"):
        run(spec_at(tmp_path, limits=limits), cluster)
    assert list(cluster.jobs.values()) == ["STOPPED"]


def test_run_works_inside_a_running_event_loop(tmp_path: Path) -> None:
    async def flow(cluster: FakeCluster) -> int:
        return run(spec_at(tmp_path), cluster).run.attempt

    with FakeCluster() as cluster:
        assert asyncio.run(flow(cluster)) == 1


def test_an_interrupt_reaches_a_run_called_inside_a_running_event_loop() -> None:
    told: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cancelled")

    async def flow() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        run_sync(endless())

    def interrupt(*_: object) -> None:
        raise InterruptedError("as an engine does")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(InterruptedError):
            asyncio.run(flow())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert told == ["cancelled"]


class TestRefusedBeforeAnythingIsSubmitted:
    def refused(self, cluster: Any, spec: Any, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            run(spec, cluster)
        assert RunDir.of(spec).receipts() == []

    def test_a_cluster_that_refuses_the_connection(self, tmp_path: Path) -> None:
        words = r"cluster: got http://127\.0\.0\.1:9, which cannot be reached"
        self.refused(RayCluster("http://127.0.0.1:9"), spec_at(tmp_path), ClusterUnreachableError, words)

    def test_a_cluster_that_rejects_the_token(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
        with FakeCluster(token="right") as cluster:
            for token, said in ((None, "a request without a token"), ("wrong", "the given token")):
                words = rf"token: http://.* returned 401 for {said}; expected the cluster's Ray auth token"
                self.refused(RayCluster(cluster.address, token), spec_at(tmp_path), ClusterRefusedError, words)

    def test_a_server_without_the_jobs_api(self, tmp_path: Path, other_server: str) -> None:
        words = "which has no Ray Jobs API; expected the URL of a Ray dashboard"
        self.refused(RayCluster(other_server), spec_at(tmp_path), ClusterRefusedError, words)

    def test_an_address_that_is_not_a_url(self) -> None:
        with pytest.raises(SpecError, match="address: got 'localhost:8265'; expected a URL"):
            RayCluster("localhost:8265")

    def test_more_cpus_or_gpus_than_the_cluster_will_ever_have(self, tmp_path: Path) -> None:
        with FakeCluster(num_cpus=4) as cluster:
            many = spec_at(tmp_path, scaling_config=ScalingConfig(num_workers=5))
            words = "scaling_config: infeasible, the step takes 5 CPUs; expected up to 4 CPUs, all that the cluster has"
            self.refused(cluster, many, InfeasibleError, words)
            gpus = spec_at(tmp_path, scaling_config=ScalingConfig(num_workers=1, use_gpu=True))
            self.refused(cluster, gpus, InfeasibleError, "the step takes 1 GPU; expected up to 0 GPUs")

    def test_a_step_with_datasets_that_leaves_no_cpu_for_ray_data(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("a\n1\n")
        datasets = {"train": str(tmp_path / "x.csv")}
        spec = spec_at(tmp_path, scaling_config=ScalingConfig(num_workers=4), datasets=datasets)
        with FakeCluster(num_cpus=4) as cluster:
            self.refused(cluster, spec, InfeasibleError, "5 CPUs .1 of them for Ray Data to read the datasets.")

    def test_an_autoscaling_cluster_is_asked_to_wait_instead(self, tmp_path: Path) -> None:
        with FakeCluster(num_cpus=1, autoscaling=True) as cluster:
            run(spec_at(tmp_path, scaling_config=ScalingConfig(num_workers=5)), cluster)

    def test_a_missing_dataset_file(self, tmp_path: Path) -> None:
        spec = spec_at(tmp_path, datasets={"train": str(tmp_path / "none.parquet")})
        words = r"datasets\.train\.path: got '.*none\.parquet', which does not exist"
        self.refused(LocalCluster(), spec, SpecError, words)

    def test_a_dataset_that_does_not_match_its_format(self, tmp_path: Path) -> None:
        (tmp_path / "x.parquet").write_text("no parquet")
        datasets = {"train": {"path": str(tmp_path / "x.parquet"), "columns": ["a"]}}
        self.refused(LocalCluster(), spec_at(tmp_path, datasets=datasets), SpecError, "expected readable parquet")

    def test_a_missing_label_column(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("a,b\n1,2\n")
        fields = {"framework": "xgboost", "params": {}, "label_column": "y", "train_loop_per_worker": None}
        spec = spec_at(tmp_path, datasets={"train": str(tmp_path / "x.csv")}, **fields)
        self.refused(LocalCluster(), spec, SpecError, "label_column: got 'y', not found in .*x.csv; expected one of a, b")

    def test_a_function_that_cannot_be_imported(self, tmp_path: Path) -> None:
        spec = spec_at(tmp_path, train_loop_per_worker="nowhere.at_all:loop")
        self.refused(LocalCluster(), spec, SpecError, "train_loop_per_worker: got 'nowhere.at_all:loop', which cannot be")

    def test_a_function_that_cannot_be_pickled(self, tmp_path: Path) -> None:
        lock = threading.Lock()
        spec = spec_at(tmp_path, train_loop_per_worker=lambda: lock.acquire())
        with FakeCluster() as cluster:
            self.refused(cluster, spec, SpecError, "the captured object 'lock' of type lock")

    def test_an_evaluation_without_a_readable_checkpoint_reference(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="checkpoint: got"):
            EvaluateSpec(evaluate=LOOP, checkpoint={"kind": "train", "checkpoint": None})


def test_a_cancel_of_an_attempt_leaves_a_later_one_alone(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec, cluster))
        rundir.claim(1, cluster.address, "gone", cluster.identity)
        rundir.claim(2, cluster.address, cluster.session_name, cluster.identity)
        run_sync(Supervisor(rundir, cluster).submit())
        assert run_sync(acancel(rundir, cluster, attempt=1)) == "cancelled"
        assert list(cluster.jobs.values()) == ["RUNNING"]
        assert rundir.end(2) is None
        assert rundir.intent().cancel_through == 1


def test_after_its_attempt_is_cancelled_a_call_continues_only_if_the_engine_still_wants_the_run(tmp_path: Path) -> None:
    """The engine's server cancels the attempt of a task that it ended; the process that follows the run learns it later."""
    answers, asked, jobs_at = iter([True] * 2 + [False] * 2 + [True] * 3), [], []

    async def wanted() -> bool:
        jobs_at.append(len(cluster.jobs))
        asked.append(next(answers))
        return asked[-1]

    with FakeCluster(plays=["hang", "succeed"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        supervisor = Supervisor(rundir, cluster, wanted=wanted)
        run_sync(supervisor.submit())
        assert run_sync(acancel(rundir, cluster, attempt=1)) == "cancelled"
        result = run_sync(supervisor.run())
    assert asked == [True] * 2 + [False] * 2 + [True] * 3, "around each claim; also before it replaces an attempt"
    assert jobs_at == [0] * 2 + [1] * 5
    assert result.run.attempt == 2
