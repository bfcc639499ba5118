"""What a trial of a population leaves to the others, and how it goes on after a pause. Without Ray."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugin_core import RunConfig, TrainSpec, TuneSpec
from plugin_core.driver.tune import trial as module
from plugin_core.driver.tune.report_channel import STOPPED
from plugin_core.driver.tune.resumed import RESUMED
from plugin_core.driver.tune.trial import REFERENCE, Trial
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalWriter
from plugin_core.tracking import session

STEPS = {"train_loop_config": {"step": {"uniform": [0, 1]}}}


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(module, "ray", SimpleNamespace(get=lambda reference: None))
    monkeypatch.setattr(Trial, "_train", lambda self, child: None)
    spec = TuneSpec(
        train=TrainSpec(framework="python", train_loop_per_worker="devtools.steps:counting_loop"),
        param_space=STEPS,
        metric="value",
        mode="max",
        scheduler={"type": "pbt", "hyperparam_mutations": STEPS},  # type: ignore[arg-type]
        tracking=["tensorboard"],  # type: ignore[arg-type]
        run_config=RunConfig(name="search", storage_path=str(tmp_path)),
    )
    RunDir.of(spec).write_spec(spec)
    return RunDir.of(spec)


def begun(search: RunDir, name: str, reference: dict[str, Any] | None = None, step: float = 0.5) -> tuple[Trial, RunDir]:
    """A trial in a new process, and its leg. `reference`: what Ray Tune gives it to go on from."""
    made: Any = Trial.__new__(Trial)
    made._trial_info = SimpleNamespace(trial_id=name)
    mailbox = SimpleNamespace(begin=SimpleNamespace(remote=lambda leg: None))
    made.setup({"train_loop_config": {"step": step}}, run_uri=search.uri, attempt=1, mailbox=mailbox)
    if reference is not None:
        Path(search.location.path, REFERENCE).write_text(json.dumps(reference))
        made.load_checkpoint(search.location.path)
    return made, made._begin()


def saved(trial: Trial, search: RunDir) -> dict[str, Any]:
    trial.save_checkpoint(search.location.path)
    reference: dict[str, Any] = json.loads(Path(search.location.path, REFERENCE).read_text())
    return reference


def report(trial: Trial, leg: RunDir, checkpoint: str | None = None) -> None:
    """The train function reports, and Ray Tune takes the report."""
    writer = JournalWriter(leg, 1)
    writer.append({"report": 1, "index": 1, "metrics": {"value": 1.0}, "checkpoint": checkpoint})
    writer.close()
    if checkpoint:
        leg.location.child(checkpoint).child("state.json").write(b"{}")
    trial._told += 1
    trial._latest = checkpoint or trial._latest


def start_of(leg: RunDir) -> Any:
    return (leg.read_record()["spec"]["resume_from"] or {}).get("uri")


def test_a_population_without_a_checkpoint_to_hand_over_is_refused(search: RunDir) -> None:
    """Not before one is needed: a loop may report its first checkpoint later than its first metrics."""
    trial, leg = begun(search, "a")
    report(trial, leg)
    trial._check({"value": 1.0})
    with pytest.raises(
        SpecError, match=r"scheduler: got 'pbt', .* reported none by report 1; expected checkpoints with its"
    ):
        trial.save_checkpoint(search.location.path)
    report(trial, leg, "checkpoint_1")
    assert saved(trial, search)["checkpoint"] == leg.location.child("checkpoint_1").uri


def test_a_trial_paused_before_its_own_first_checkpoint_keeps_what_it_started_from(search: RunDir) -> None:
    trial, leg = begun(search, "a")
    report(trial, leg, "checkpoint_1")
    theirs = saved(trial, search)
    other, leg = begun(search, "b", theirs, step=0.6)
    assert start_of(leg) == theirs["checkpoint"]
    report(other, leg)
    paused = saved(other, search)
    assert paused["checkpoint"] == theirs["checkpoint"], "it may itself be handed over"
    _, again = begun(search, "b", paused, step=0.6)
    assert (again.name, start_of(again)) == (leg.name, theirs["checkpoint"])


def test_a_paused_trial_goes_on_in_its_run_and_in_the_tracking_run_of_that(search: RunDir) -> None:
    trial, leg = begun(search, "a")
    report(trial, leg, "checkpoint_1")
    again, same = begun(search, "a", saved(trial, search))
    assert (same.name, start_of(same), again._told) == ("trial-a", None, 1)
    _, other = begun(search, "a", saved(again, search), step=0.6)
    assert other.name.startswith("trial-a-"), "mutated"


def test_a_trial_that_is_drawn_again_under_the_same_id_does_not_go_on_from_other_values(search: RunDir) -> None:
    """A kill came before Ray Tune had saved the first draw, but after its first report."""
    trial, leg = begun(search, "a", step=0.5)
    report(trial, leg, "checkpoint_1")
    again, same = begun(search, "a", step=0.5)
    assert (same.uri, len(again._before)) == (leg.uri, 1)
    other, its = begun(search, "a", step=0.6)
    assert its.name.startswith("trial-a-")
    assert not other._before
    _, resumed = begun(search, "a", step=0.6)
    assert resumed.uri == its.uri


def test_a_later_report_without_the_metric_fails_the_trial_and_not_the_search(search: RunDir) -> None:
    """Ray Tune would end the search."""
    trial, _ = begun(search, "a")
    trial._before.extend({"metrics": found, "checkpoint": None} for found in ({"value": 1.0}, {"loss": 1.0}))
    trial.step()
    with pytest.raises(UserCodeError, match="report 2 has no 'value', the search's metric"):
        trial.step()
    with pytest.raises(UserCodeError, match="report 2 has no 'value'"):
        begun(search, "a")  # Ray Tune tries again
    trial, _ = begun(search, "b")
    trial._before.append({"metrics": {"loss": 1.0}, "checkpoint": None})
    with pytest.raises(SpecError, match="metric: got 'value', which the train function did not report"):
        trial.step()


def test_a_report_that_a_killed_mailbox_gets_again_reaches_ray_tune_once(
    search: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, _ = begun(search, "a")
    delivered = [{"report": number, "metrics": {"value": float(number)}} for number in (1, 2, 2, 3)]
    trial._mailbox = SimpleNamespace(next=SimpleNamespace(remote=lambda leg: delivered.pop(0)))
    monkeypatch.setattr(module, "ray", SimpleNamespace(get=lambda reference: reference))
    results = [trial.step() for _ in range(3)]
    assert [(result["value"], result["reports"]) for result in results] == [(1.0, 1), (2.0, 2), (3.0, 3)]


def test_a_trial_whose_search_is_over_returns_even_before_its_first_report(
    search: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, _ = begun(search, "a")
    trial._mailbox = SimpleNamespace(next=SimpleNamespace(remote=lambda leg: dict(STOPPED)))
    monkeypatch.setattr(module, "ray", SimpleNamespace(get=lambda reference: reference))
    assert trial.step()["done"]


class Tracking:
    def __init__(self) -> None:
        self.ended: list[tuple[str, str]] = []
        self.warnings: list[str] = []

    def end(self, status: str, message: str, timeout_s: float) -> None:
        self.ended.append((status, message))


def test_the_trackers_of_a_trial_that_is_stopped_early_get_the_rest_and_the_end(
    search: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reported, status in (({"value": 1.0}, "finished"), ({"loss": 1.0}, "failed")):
        tracking = Tracking()
        monkeypatch.setattr(session, "_open", {tracking})
        trial, _ = begun(search, status)
        trial._before.append({"metrics": reported, "checkpoint": None})
        with contextlib.suppress(SpecError):
            trial.step()
        assert tracking.ended == []
        trial.cleanup()  # Ray Tune calls it before it ends the process
        ((found, message),) = tracking.ended
        assert (found, "did not report" in message) == (status, status == "failed")


def further(search: RunDir, name: str, value: float | None = 0.5) -> tuple[Trial, RunDir, str]:
    """A trial that trains further, its leg, and the checkpoint of the finished search that it starts from."""
    checkpoint = search.location.parent.child("old", "_children", "trial-then", "checkpoint_1")
    checkpoint.child("state.json").write(b"{}")
    made: Any = Trial.__new__(Trial)
    made._trial_info = SimpleNamespace(trial_id=name)
    mailbox = SimpleNamespace(begin=SimpleNamespace(remote=lambda leg: None))
    resumed = {"run": checkpoint.parent.uri, "checkpoint": checkpoint.uri, "value": value}
    config = {"train_loop_config": {"step": 0.5}, RESUMED: resumed}
    made.setup(config, run_uri=search.uri, attempt=1, mailbox=mailbox)
    return made, made._begin(), checkpoint.uri


def test_a_trial_that_trains_further_runs_under_its_name_of_then_from_its_checkpoint(search: RunDir) -> None:
    _, leg, checkpoint = further(search, "now")
    assert (leg.name, start_of(leg)) == ("trial-then", checkpoint)
    assert leg.uri.startswith(search.uri)
    assert leg.read_record()["spec"]["train_loop_config"]["step"] == 0.5
    again, same, _ = further(search, "now")  # after a kill
    assert same.uri == leg.uri
    report(again, same, "checkpoint_2")
    _, other = begun(search, "b", saved(again, search), step=0.6)
    assert (other.name[:8], start_of(other)) == ("trial-b-", leg.location.child("checkpoint_2").uri), "it is handed over"


@pytest.mark.parametrize("value", [0.5, None])
def test_a_trial_with_nothing_left_to_train_is_what_it_was(search: RunDir, value: float | None) -> None:
    trial, _, _ = further(search, "now", value)
    ended = trial._end()
    assert (ended["leg"], ended["reports"], ended["done"]) == ("trial-then", 0, True)
    assert ended["value"] == value if value is not None else ended["value"] != ended["value"]
