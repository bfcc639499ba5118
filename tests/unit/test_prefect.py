"""The Prefect tasks without a server: what importing costs, how a step gets its name, which errors are tried again."""

import asyncio
import logging
import signal
import subprocess
import sys
from json import JSONDecodeError
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
from prefect.exceptions import TerminationSignal
from prefect.logging.loggers import PrefectLogAdapter
from prefect.states import Cancelling, Failed

from devtools.steps import counting_loop
from plugin_core import EvaluateSpec, Limits, RunConfig, TrainSpec
from plugin_core.errors import (
    ClusterUnreachableError,
    InfrastructureError,
    SpecChangedError,
    SpecError,
    StepCancelledError,
    UserCodeError,
)
from plugin_core.registry.base import ModelVersion
from plugin_core.runs.directory import RunDir
from plugin_core.supervisor.events import Line
from prefect_integration import identity, step, tasks

HEAVY = ("ray", "torch", "pandas", "mlflow")
ROOT = UUID("11111111-1111-1111-1111-111111111111")


def imported(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert imported("import prefect_integration") == set()


def test_importing_the_tasks_imports_no_more_than_prefect_itself_does() -> None:
    assert imported("from prefect_integration import train") == imported("import prefect.tasks") <= {"pandas"}


class FakeServer:
    """A root flow run that called the subflow `inner` as its second call, under a new flow run id at every retry."""

    def __init__(self) -> None:
        self.parent = SimpleNamespace(flow_run_id=ROOT, dynamic_key="1")
        self.subflow = SimpleNamespace(id=uuid4(), run_count=1, flow_id=uuid4(), parent_task_run_id=uuid4())
        self.root = SimpleNamespace(id=ROOT, run_count=1, flow_id=uuid4(), parent_task_run_id=None)

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def read_task_run(self, id: UUID) -> Any:
        return self.parent

    def read_flow(self, id: UUID) -> Any:
        return SimpleNamespace(name="inner")

    def read_flow_run(self, id: UUID) -> Any:
        return self.root


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts the code into a flow run."""

    def enter(flow_run: Any, server: Any = None) -> None:
        context = SimpleNamespace(flow_run=flow_run, flow=SimpleNamespace(name="retrain")) if flow_run else None
        monkeypatch.setattr(identity.FlowRunContext, "get", lambda: context)
        monkeypatch.setattr(identity, "get_client", lambda sync_client: server)

    return enter


def training(**fields: Any) -> TrainSpec:
    return TrainSpec(framework="python", train_loop_per_worker=counting_loop, **fields)


def name(spec: Any, key: str | None = None) -> str:
    return identity.named(spec, key, identity.Call.here()).run_config.name


def test_a_name_chosen_by_the_user_is_kept(inside: Any) -> None:
    inside(None)
    assert name(training(run_config=RunConfig(name="mine"))) == "mine"


def test_outside_a_flow_run_the_name_is_required(inside: Any) -> None:
    inside(None)
    with pytest.raises(SpecError, match=r"run_config\.name: missing; required outside a flow run"):
        name(training())


def test_the_name_consists_of_the_flow_run_and_the_key(inside: Any) -> None:
    inside(SimpleNamespace(id=ROOT, run_count=1, parent_task_run_id=None))
    assert name(training(), "fit") == f"{ROOT}--fit"


def test_without_a_key_equal_specs_have_one_name_and_different_ones_two(inside: Any) -> None:
    inside(SimpleNamespace(id=ROOT, run_count=1, parent_task_run_id=None))
    specs = [training(train_loop_config={"epochs": epochs}) for epochs in (1, 2, 2)]
    names = [name(spec) for spec in specs]
    assert names[0] != names[1] == names[2]
    assert all(n.startswith(f"{ROOT}--train-") for n in names)


def test_timeouts_are_not_part_of_the_name(inside: Any) -> None:
    inside(SimpleNamespace(id=ROOT, run_count=1, parent_task_run_id=None))
    assert name(training()) == name(training(limits=Limits(timeout_s=60)))


def test_steps_of_two_kinds_have_two_names(inside: Any) -> None:
    inside(SimpleNamespace(id=ROOT, run_count=1, parent_task_run_id=None))
    evaluation = EvaluateSpec(evaluate="devtools.steps:evaluate", checkpoint="/checkpoint")
    assert name(evaluation).startswith(f"{ROOT}--evaluate-")


def test_a_subflows_key_is_the_root_flow_run_and_the_call_not_its_own_id(inside: Any) -> None:
    names = set()
    for _ in range(2):
        server = FakeServer()
        inside(server.subflow, server)
        names.add(name(training(), "fit"))
    assert names == {f"{ROOT}--inner-1--fit"}


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (UserCodeError("bad data"), False),
        (SpecError("num_workers"), False),
        (SpecChangedError("name", ("params",)), False),
        (StepCancelledError("cancelled"), False),
        (InfrastructureError("a node was lost"), True),
        (ClusterUnreachableError("no answer"), True),
        (RuntimeError("something of Prefect's"), True),
    ],
)
def test_only_an_error_that_a_retry_may_fix_is_retried(error: Exception, again: bool) -> None:
    assert tasks.retry_makes_sense(tasks.train, None, Failed(data=error)) is again


def call(task_run: str = "train-0", executions: tuple[int, ...] = (1,), nested: bool = False) -> identity.Call:
    id = UUID(int=hash(task_run) % 2**64)
    return identity.Call((ROOT,), (), executions, "retrain", id, task_run, nested)


@pytest.fixture
def no_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_claims", {})


@pytest.mark.usefixtures("no_claims")
@pytest.mark.parametrize("epochs", [1, 2])
def test_two_steps_under_one_key_in_a_flow_run_are_refused_naming_both(epochs: int) -> None:
    identity.named(training(train_loop_config={"epochs": 1}), "fit", call("train-0"))
    with pytest.raises(SpecError, match=r"key: got 'fit' for the task run 'train-1', but .* task run 'train-0'"):
        identity.named(training(train_loop_config={"epochs": epochs}), "fit", call("train-1"))


@pytest.mark.usefixtures("no_claims")
def test_a_retried_task_and_a_retried_flow_keep_their_key() -> None:
    names = {
        identity.named(training(), "fit", where).run_config.name
        for where in (call("train-0"), call("train-0"), call("again", (2,)), call("nested", (2,), nested=True))
    }
    assert names == {f"{ROOT}--fit"}


def made(value: int) -> Any:
    def loop(config: dict[str, Any]) -> int:
        return value

    return loop


@pytest.mark.usefixtures("no_claims")
def test_newer_code_keeps_the_name_so_that_the_live_job_is_found() -> None:
    first = identity.named(training().model_copy(update={"train_loop_per_worker": made(1)}), None, call())
    second = identity.named(training().model_copy(update={"train_loop_per_worker": made(2)}), None, call("x", (2,)))
    assert first.run_config.name == second.run_config.name


@pytest.mark.usefixtures("no_claims")
def test_two_steps_that_differ_only_in_code_need_a_key_each() -> None:
    identity.named(training().model_copy(update={"train_loop_per_worker": made(1)}), None, call("train-0"))
    with pytest.raises(SpecError, match=r"run_config\.name: got .* expected a unique key for each"):
        identity.named(training().model_copy(update={"train_loop_per_worker": made(2)}), None, call("train-1"))


@pytest.mark.usefixtures("no_claims")
def test_two_equal_steps_without_a_key_are_the_same_run() -> None:
    names = {identity.named(training(), None, call(f"train-{n}")).run_config.name for n in range(2)}
    assert len(names) == 1


def test_a_sigterm_is_noted_once_and_passed_on_however_many_steps_are_awaited() -> None:
    handed_on: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: handed_on.append(number))
    try:
        first, second = step._sigterm_seen(), step._sigterm_seen()
        assert first is second
        assert not first.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert first.is_set()
        assert handed_on == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_step_that_prefect_terminates_says_whether_it_was_cancelled(
    monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    stopped: list[bool] = []

    async def follow(self: step.Step) -> Any:
        raise TerminationSignal(signal.SIGTERM)

    async def cancel_wanted(self: step.Step) -> bool:
        return cancelled

    async def stop(self: step.Step) -> None:
        stopped.append(True)

    for name, replacement in (("follow", follow), ("_cancel_wanted", cancel_wanted), ("_stop", stop)):
        monkeypatch.setattr(step.Step, name, replacement)
    a_step = step.Step(TrainSpec(train_loop_per_worker=counting_loop, framework="python"), TrainSpec, None, None, Mock())
    with pytest.raises(StepCancelledError if cancelled else TerminationSignal):
        a_step.run_sync()
    assert stopped == [True] * cancelled


class Answers:
    """Prefect's client. Its server answers with `errors`, one after another, and then that the flow run is cancelled."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def __aenter__(self) -> "Answers":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def read_flow_runs(self, **filters: Any) -> list[Any]:
        if self.errors:
            raise self.errors.pop(0)
        return [SimpleNamespace(id=ROOT, state=Cancelling())]


NO_ANSWERS = [ConnectionError("refused"), JSONDecodeError("Expecting value", "<html>", 0), TypeError("null")]


def test_a_cancel_reaches_the_job_after_answers_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    unexpected = [KeyError("a bug"), KeyError("the same bug")]
    answers, log, supervisor = Answers(*NO_ANSWERS, *unexpected), Mock(), Mock()
    monkeypatch.setattr(step, "get_client", lambda: answers)
    monkeypatch.setattr(step, "CANCEL_POLL_S", 0)
    a_step = step.Step(TrainSpec(train_loop_per_worker=counting_loop, framework="python"), TrainSpec, None, None, log)
    a_step._rundir = RunDir.at("/run")
    asyncio.run(a_step._accompany(supervisor, Mock(), SimpleNamespace(flow_runs=[ROOT])))
    supervisor.give_up.assert_called_once_with()
    levels = [logging.getLevelName(call.args[0]) for call in log.log.call_args_list]
    assert (log.debug.call_count, levels) == (3, ["WARNING", "DEBUG"]), "an unexpected error is told once"


@pytest.mark.parametrize("error", NO_ANSWERS)
def test_a_task_does_not_fail_because_prefect_does_not_say_whether_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(step, "get_client", lambda: Answers(error))
    a_step = step.Step(TrainSpec(train_loop_per_worker=counting_loop, framework="python"), TrainSpec, None, None, Mock())
    a_step._call = SimpleNamespace(flow_runs=[ROOT])  # type: ignore[assignment]
    assert asyncio.run(a_step._wanted())


def test_a_champion_that_a_promotion_keeps_is_named_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    champion = ModelVersion(name="m", version=2, checkpoint="/c", kept="the champion of m stays version 2: why")
    given, log = Mock(return_value=champion), Mock()
    monkeypatch.setattr("plugin_core.engine.promote", given)
    monkeypatch.setattr("prefect_integration.tasks.get_run_logger", lambda: log)
    assert tasks.promote.fn("/x", "m", allow_older=True) == champion
    log.warning.assert_called_once_with(champion.kept)
    assert given.call_args.kwargs["allow_older"] is True


def test_lines_have_the_time_of_what_happened_and_the_ids_of_the_run(caplog: pytest.LogCaptureFixture) -> None:
    logger = PrefectLogAdapter(logging.getLogger("a.flow"), extra={"flow_run_id": "7"})
    a_step = step.Step(TrainSpec(train_loop_per_worker=counting_loop, framework="python"), TrainSpec, None, None, logger)
    with caplog.at_level(logging.INFO):
        a_step._write(Line("report 1", logging.INFO, 1_800_000_000.0))
        a_step._write(Line("2 lines", logging.WARNING, 0.0, ("a", "b")))
    assert [(record.getMessage(), record.levelname) for record in caplog.records] == [
        ("report 1", "INFO"),
        ("a", "WARNING"),
        ("b", "WARNING"),
    ]
    assert (caplog.records[0].created, caplog.records[0].__dict__["flow_run_id"]) == (1_800_000_000.0, "7")
