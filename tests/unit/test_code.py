"""A job runs the code that it was submitted with, however the fields change that another call may change meanwhile."""

from pathlib import Path
from typing import Any

import pytest

from plugin_core import run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.driver import attempt as driver
from plugin_core.errors import InfrastructureError, StepCancelledError
from plugin_core.runs import code
from plugin_core.runs.directory import RunDir
from plugin_core.runs.spec_record import OPERATIONAL
from plugin_core.specs import Limits
from tests.support.fake_steps import spec_at

CHANGES: dict[str, Any] = {
    "limits": Limits(max_attempts=7),
    "tracking": ["tensorboard"],
    "report_all_ranks": True,
    "world_check": False,
    "hang_detection": {"action": "restart"},
    "failure_policy": {"worker_lost": {"exclude_node_after": 2}},
}


def submitted(tmp_path: Path) -> tuple[RunDir, str, str]:
    rundir = RunDir.of(spec := spec_at(tmp_path))
    rundir.write_spec(spec)
    assert rundir.claim(1, "address", "incarnation") is not None
    return rundir, *code.digests(rundir)


def test_the_changes_are_of_all_fields_that_another_call_may_change() -> None:
    assert CHANGES.keys() == {name for name in OPERATIONAL if not name.startswith("run_config.")}


@pytest.mark.parametrize("field", CHANGES)
def test_another_call_may_change_a_field_while_the_job_is_pending(tmp_path: Path, field: str) -> None:
    rundir, _, lasting = submitted(tmp_path)
    before = rundir.read_spec()
    rundir.write_spec(spec_at(tmp_path, **{field: CHANGES[field]}))
    assert rundir.read_spec() != before
    code.hold(rundir, lasting)


@pytest.mark.parametrize("field", ["limits", "tracking", "report_all_ranks", "world_check"])
def test_a_job_of_an_orchestrator_of_an_earlier_version_runs_as_before(tmp_path: Path, field: str) -> None:
    rundir, argument, _ = submitted(tmp_path)
    rundir.write_spec(spec_at(tmp_path, **{field: CHANGES[field]}))
    code.hold(rundir, argument)


def test_what_is_computed_may_not_change(tmp_path: Path) -> None:
    rundir, *both = submitted(tmp_path)
    record = rundir.step.child("spec.json")
    record.write((record.read() or b"").replace(b"counting_loop", b"another_loop"))
    for expected in both:
        with pytest.raises(InfrastructureError, match="has changed since this job was submitted"):
            code.hold(rundir, expected)


def test_the_driver_compares_what_its_job_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def run_attempt(*args: Any, **_: Any) -> None:
        given.append(args[5])
        raise StepCancelledError("seen enough")

    monkeypatch.setattr(driver, "run_attempt", run_attempt)
    monkeypatch.setattr(driver, "signal_pipe", lambda: None)
    monkeypatch.setattr(driver.log_keeper, "of_driver", lambda *_: None)
    with FakeCluster() as cluster:
        rundir = RunDir.at(run(spec_at(tmp_path), cluster).run.uri)
    argument, lasting = code.digests(rundir)
    receipt = rundir.receipt(1)
    assert receipt is not None
    for variables, expected in (({}, argument), (cluster.runtime_envs[0]["env_vars"], lasting)):
        with monkeypatch.context() as environment:
            environment.setattr("os.environ", dict(variables))
            driver._main(rundir.uri, 1, receipt.nonce, argument)
        assert given.pop() == expected
