"""Why workers restart, or a training fails: recorded by Ray Train's controller, told to people as a line."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from plugin_core.driver import masking
from plugin_core.driver.train import restarts
from plugin_core.driver.train.journal_callback import JournalCallback
from plugin_core.driver.train.judge import Judge
from plugin_core.driver.train.snapshot import RunState
from plugin_core.errors import InfrastructureError, StepTimeoutError
from plugin_core.ray_internals.controller import Process
from plugin_core.runs import timings
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.runs.journal import JournalReader
from plugin_core.specs.failure_policy import FailurePolicy
from plugin_core.supervisor.story import phase_in_words

WORKERS = {rank: Process(7 + rank, "vm", "node") for rank in range(2)}
KILLED = "was killed (SIGKILL, or out of memory) or crashed"
LOST = f"{KILLED} (cause: worker_lost)"
MINE = ValueError("the data is bad")
PEER = RuntimeError("[gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:1: Connection reset by peer")


def dead(text: str = "") -> Exception:
    """What Ray Train makes of a worker whose process is gone."""
    return WorkerHealthCheckFailedError(f"A worker health check failed. {text}", ActorDiedError())


@pytest.mark.parametrize(("failures", "expected"), [
    ({1: dead()}, f"worker rank 1 (pid 8, vm) {KILLED}"),
    ({0: PEER, 1: dead()}, f"worker rank 1 (pid 8, vm) {KILLED}"),
    ({0: dead(), 1: dead()}, f"worker rank 0 (pid 7, vm) {KILLED}; so were 1 more"),
    ({5: dead("The actor died because its node has died.")}, "worker rank 5 was lost: its node died"),
    ({0: dead("the node running low on memory")}, "worker rank 0 (pid 7, vm) was killed: its node was low on memory"),
    ({0: PEER}, f"worker rank 0 (pid 7, vm) lost a connection: RuntimeError: {PEER}"),
    ({0: MINE}, "the train function raised ValueError: the data is bad (rank 0)"),
    ({0: OSError(28, "No space left on device")},
     "worker 0: the storage is full (OSError: [Errno 28] No space left on device); the last complete checkpoint is kept"),
])  # fmt: skip
def test_the_cause_is_said_in_a_line(failures: dict[int, Any], expected: str) -> None:
    assert restarts.diagnose(WorkerGroupError("failed", failures), WORKERS).why == expected


def test_our_own_errors_say_what_they_say() -> None:
    assert restarts.diagnose(ControllerError(StepTimeoutError("no resources")), {}).why == "no resources"
    lost = ControllerError(InfrastructureError("no workers"))
    assert restarts.diagnose(lost, {}).why == "no workers"


class Controller:
    """Drives the callback as Ray Train's controller does."""

    def __init__(self, tmp_path: Path, state: RunState | None = None, max_failures: int = 3, policy: Any = None):
        self.rundir = RunDir.at(str(tmp_path / "run"))
        self.rundir.claim(1, "address", "incarnation")
        judge = Judge(max_failures, policy or FailurePolicy())
        self.callback = JournalCallback(self.rundir.uri, 1, state or RunState(), judge=judge)
        self._state = self._of("initializing")

    @staticmethod
    def _of(name: str, error: Exception | None = None) -> Any:
        kind = SimpleNamespace(state_name=name.upper())
        return SimpleNamespace(_state_type=kind, **({"training_failed_error": error} if error else {}))

    def enter(self, name: str, error: Exception | None = None) -> None:
        before, self._state = self._state, self._of(name, error)
        self.callback.after_controller_state_update(before, self._state)

    def start(self) -> None:
        self.callback.before_worker_group_start(None)
        workers = [
            SimpleNamespace(
                distributed_context=SimpleNamespace(world_rank=rank),
                metadata=SimpleNamespace(pid=7 + rank, hostname="vm", node_id="node"),
            )
            for rank in range(2)
        ]
        self.callback.after_worker_group_start(SimpleNamespace(get_workers=lambda: workers))

    def report(self, checkpoint: str | None, **metrics: Any) -> None:
        kept = SimpleNamespace(path=f"/run/{checkpoint}") if checkpoint else None
        self.callback.after_report(SimpleNamespace(checkpoint=kept, validation=False), [metrics])

    def told(self) -> list[str]:
        self.callback.after_controller_finish(None)
        entries = [entry for entry in JournalReader(self.rundir) if "phase" in entry]
        return [text for entry in entries if (text := phase_in_words(entry))]


def test_a_killed_worker_is_told_with_its_number_and_what_the_others_resume_from(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    controller.start()
    controller.enter("restarting", WorkerGroupError("failed", {1: dead()}))
    controller.start()
    controller.report("checkpoint_a001_000001", step=160, loss=0.5)
    controller.report(None, step=170)
    controller.enter("running")
    controller.enter("restarting", WorkerGroupError("failed", {0: dead()}))
    assert controller.told() == [
        "2 workers started",
        f"worker rank 1 (pid 8, vm) {LOST}; failure 1 of 3; starting over, as there is no checkpoint yet",
        "2 workers started",
        f"worker rank 0 (pid 7, vm) {LOST}; failure 2 of 3; resuming from checkpoint_a001_000001, step 160",
    ]


def test_an_attempt_that_resumes_knows_its_checkpoint_before_its_first_report(tmp_path: Path) -> None:
    controller = Controller(tmp_path, RunState(4, 4, checkpoints=("checkpoint_a001_000004",)), max_failures=-1)
    controller.enter("restarting", WorkerGroupError("failed", {1: dead()}))
    assert controller.told()[0].endswith("; failure 1; resuming from checkpoint_a001_000004")


def test_a_restart_by_a_rule_counts_although_the_driver_is_killed_right_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "FLUSH_S", 3600.0)
    controller = Controller(tmp_path, policy=FailurePolicy(worker_lost={"at_most": 5}))
    controller.start()
    controller.enter("restarting", WorkerGroupError("failed", {1: dead()}))
    assert History.read(controller.rundir).recovery.restarts == {"worker_lost": 1}
    controller.told()


def test_a_users_exception_is_told_once_and_not_as_a_restart(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    error = WorkerGroupError("failed", {0: MINE})
    controller.enter("restarting", error)  # Ray's decision, which the guard overrules
    controller.enter("errored", ControllerError(MINE))
    assert controller.told() == ["the train function raised ValueError: the data is bad (rank 0)"]


def test_the_last_failure_is_no_restart_either(tmp_path: Path) -> None:
    controller = Controller(tmp_path, max_failures=0)
    controller.enter("errored", WorkerGroupError("failed", {1: dead()}))
    assert controller.told() == [f"worker rank 1 {LOST}"]


def test_what_was_handed_over_is_masked_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_values", ["hunter2"])
    controller = Controller(tmp_path)
    controller.enter("errored", WorkerGroupError("failed", {0: ValueError("https://a:hunter2@b refuses")}))
    assert controller.told() == ["the train function raised ValueError: https://a:…@b refuses (rank 0)"]


def test_a_counter_that_no_float_can_hold_does_not_end_the_training(tmp_path: Path) -> None:
    """What a callback raises ends a training as a ControllerError."""
    callback = JournalCallback(str(tmp_path / "run"), 1, RunState())
    report = SimpleNamespace(checkpoint=SimpleNamespace(path="/run/checkpoint_1"), validation=False)
    callback.after_report(report, [{"step": 10**400}])
    callback.after_controller_finish(None)
    (entry,) = JournalReader(RunDir.at(str(tmp_path / "run"))).read()
    assert entry["checkpoint"] == "checkpoint_1"
