"""What a tracker gets: the spec's options, the journal's entries, and how the run ended."""

import json
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import wait_until
from devtools.steps import counting_loop
from plugin_core import Comet, MLflow, RunConfig, TensorBoard, TrainSpec, WandB, parse_spec
from plugin_core.clusters.fake import FakeCluster
from plugin_core.driver.train.finite import check_finite
from plugin_core.errors import FencedError, InfrastructureError, SpecError
from plugin_core.runs.directory import AttemptEnd, Heartbeat, RunDir
from plugin_core.specs.tracking import Tracker
from plugin_core.storage.threads import run_sync
from plugin_core.supervisor.follower import Event
from plugin_core.supervisor.supervisor import Supervisor
from plugin_core.tracking.backend import Backend, Entry, numbers
from plugin_core.tracking.feed import Feed
from plugin_core.tracking.mlflow import _names
from plugin_core.tracking.replay import _ended
from plugin_core.tracking.session import Feeds, make_backend
from plugin_core.tracking.staged import Staged
from plugin_core.tracking.subject import Subject


def spec(tracking: Any) -> TrainSpec:
    return TrainSpec(framework="python", train_loop_per_worker=counting_loop, tracking=tracking)


def test_a_tracker_is_given_by_name_as_a_dict_or_as_itself_and_survives_json() -> None:
    assert spec("mlflow").tracking == [MLflow()]
    given = ["tensorboard", {"type": "wandb", "mode": "offline"}, Comet(project_name="p")]
    assert spec(given).tracking == [TensorBoard(), WandB(mode="offline"), Comet(project_name="p")]
    assert spec(None).tracking == []
    kept = TrainSpec(framework="python", train_loop_per_worker="devtools.steps:counting_loop", tracking=given)
    again = parse_spec(json.loads(json.dumps(kept.to_json())))
    assert again.tracking == kept.tracking


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("mlfow", "tracking.*got.*'mlfow'"),
        (["mlflow", MLflow()], r"tracking: got 'mlflow' 2 times; expected each tracker once"),
        ({"type": "mlflow", "experiment": "x"}, r"experiment: unknown field.*did you mean experiment_name"),
        (
            {"type": "mlflow", "tracking_uri": "https://me:hunter2@host"},
            r"tracking_uri: got 'https://…@host' with a password; expected a URI without it",
        ),
    ],
)
def test_a_value_that_is_not_a_tracker_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as caught:
        spec(given)
    assert "hunter2" not in caught.value.message


def test_a_missing_package_is_named_with_what_installs_it(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"package comet_ml is not installed.*pip install 'ray-train-workflows\[comet\]'"):
        make_backend(Comet(), Subject(rundir, "train", 1))


def test_numbers_of_a_report_are_those_a_tracker_can_plot() -> None:
    found = numbers({"loss": 0.5, "val": {"acc": 1, "deep": {"f1": 0.2}}, "ok": True, "text": "x", "list": [1, 2]})
    assert found == {"loss": 0.5, "val/acc": 1.0, "val/deep/f1": 0.2, "ok": 1.0}
    assert numbers({"nan": None})["nan"] != numbers({"nan": None})["nan"]


def test_a_number_that_no_float_can_hold_costs_no_other_metric(rundir: RunDir) -> None:
    line = {"attempt": 1, "time": 1.0, "report": 1, "metrics": {"huge": 10**400, "loss": 0.5}}
    rundir.step.child("journal", "001-0001.jsonl").write(json.dumps(line).encode() + b"\n")
    feeds, backend = feed(rundir)
    feeds.begin()
    feeds.end("finished")
    assert [entry.metrics["loss"] for entry in backend.entries] == [0.5]
    check_finite({"loss": 10**400}, [])  # finite it is


def test_names_for_mlflow_are_valid_short_and_unique() -> None:
    names = _names(dict.fromkeys(["a@b", "a#b", "x" * 300, "x" * 301, "", "/lead//double/", "ok-1.2_3 4:5"]))
    assert len(set(names.values())) == len(names)
    assert all(0 < len(name) <= 250 for name in names.values())
    assert names["ok-1.2_3 4:5"] == "ok-1.2_3 4:5"
    assert names["/lead//double/"] == "lead/double"


class Listening(Backend):
    """A named fake of a tracker: keeps what it is given, and fails while `away`."""

    def __init__(self, config: Tracker, subject: Subject, there: int = 0):
        super().__init__(config, subject)
        self.there, self.away = there, False
        self.entries: list[Entry] = []
        self.ledgers: list[Entry] = []
        self.ended: list[Any] = []

    def begin(self) -> int:
        self._answer()
        return self.there

    def log(self, entries: list[Entry]) -> None:
        self._answer()
        self.entries += [entry for entry in entries if "ledger/useful_share" not in entry.metrics]
        self.ledgers += [entry for entry in entries if "ledger/useful_share" in entry.metrics]

    def end(self, status: str, message: str) -> None:
        self._answer()
        self.ended.append((status, message))

    def leave(self) -> None:
        self.ended.append("left")

    def _answer(self) -> None:
        if self.away:
            raise ConnectionError("nobody is there")


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    given = spec([]).model_copy(update={"run_config": RunConfig(name="run", storage_path=str(tmp_path))})
    rundir = RunDir.of(given)
    rundir.write_spec(given)
    return rundir


def journal(rundir: RunDir, *indices: int) -> None:
    lines = [
        json.dumps({"attempt": 1, "time": float(n), "report": n, "index": index, "metrics": {"epoch": index - 1, "n": n}})
        for n, index in enumerate(indices, start=1)
    ]
    rundir.step.child("journal", "001-0001.jsonl").write(("\n".join(lines) + "\n").encode())


def feed(rundir: RunDir, config: Tracker | None = None, there: int = 0) -> tuple[Feeds, Listening]:
    backend = Listening(config or MLflow(), Subject(rundir, "train", 1), there)
    return Feeds([Feed(rundir, backend)]), backend


def test_repeated_reports_are_logged_once_in_order(rundir: RunDir) -> None:
    journal(rundir, 1, 2, 3, 2, 3, 4)
    feeds, backend = feed(rundir)
    feeds.begin()
    feeds.end("finished")
    assert [(entry.index, entry.step, entry.metrics["n"]) for entry in backend.entries] == [
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
        (4, 4, 6),
    ]
    assert backend.ended == [("finished", "")]
    assert feeds.warnings == []


def test_reports_that_a_tracker_already_has_are_not_logged_again(rundir: RunDir) -> None:
    journal(rundir, 1, 2, 3, 4)
    feeds, backend = feed(rundir, MLflow(step_metric="epoch"), there=2)
    feeds.begin()
    feeds.leave()
    assert [(entry.index, entry.step) for entry in backend.entries] == [(3, 2), (4, 3)]
    assert backend.ended == ["left"]


def test_a_report_without_the_step_metric_stays_at_the_last_step(rundir: RunDir) -> None:
    reports = [{"epoch": 1}, *({"loss": 0.5} for _ in range(3)), {"epoch": 2}]
    lines = [{"attempt": 1, "time": 1.0, "report": n, "metrics": found} for n, found in enumerate(reports, start=1)]
    rundir.step.child("journal", "001-0001.jsonl").write("".join(json.dumps(line) + "\n" for line in lines).encode())
    feeds, backend = feed(rundir, MLflow(step_metric="epoch"))
    feeds.begin()
    feeds.end("finished")
    assert [entry.step for entry in backend.entries] == [1, 1, 1, 1, 2]


def test_a_validation_is_logged_at_the_step_of_the_report_before_it(rundir: RunDir) -> None:
    journal(rundir, 1, 2, 3)
    place = rundir.step.child("journal", "001-0001.jsonl")
    reports = (place.read() or b"").splitlines(keepends=True)
    ended = {"attempt": 1, "time": 9.0, "phase": "validated", "status": "validated"}
    ended |= {"checkpoint": "c", "index": 1, "metrics": {"accuracy": 0.5}}
    line = json.dumps(ended).encode() + b"\n"
    place.write(b"".join([*reports[:2], line, reports[2]]))
    expected = {"accuracy": 0.5, "validation/report": 1.0}
    for there, logged in ((0, [1, 2, "v", 3]), (2, ["v", 3]), (3, [])):
        feeds, backend = feed(rundir, there=there)
        feeds.begin()
        feeds.end("finished")
        assert ["v" if entry.metrics == expected else entry.index for entry in backend.entries] == logged
        assert all(entry.step == 2 for entry in backend.entries if entry.metrics == expected)


def test_a_tracker_that_comes_back_gets_what_it_missed(rundir: RunDir) -> None:
    feeds, backend = feed(rundir)
    feeds.begin()
    backend.away = True
    journal(rundir, *range(1, 2001))
    time.sleep(1.5)
    backend.away = False
    feeds.end("finished")
    assert [entry.index for entry in backend.entries] == list(range(1, 2001))


def test_a_tracker_that_stays_away_is_a_warning_and_does_not_block(rundir: RunDir) -> None:
    journal(rundir, 1, 2)
    feeds, backend = feed(rundir)
    backend.away = True
    feeds.begin()
    assert feeds.worker_environment == ({}, {})
    feeds.end("finished", timeout_s=0.5)
    (warning,) = feeds.warnings
    assert warning.startswith("tracking.mlflow: some reports are missing (nobody is there)")


def test_an_error_of_a_tracker_without_a_word_is_a_warning_too(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds, backend = feed(rundir)
    monkeypatch.setattr(backend, "begin", lambda: (_ for _ in ()).throw(TimeoutError()))
    feeds.begin()
    feeds.end("finished", timeout_s=0.5)
    (warning,) = feeds.warnings
    assert warning.startswith("tracking.mlflow: some reports are missing (TimeoutError)")


def test_the_ledger_is_logged_at_the_step_of_the_last_report(rundir: RunDir) -> None:
    rundir.claim(1, "http://x", "session")
    journal(rundir, 1, 2)
    feeds, backend = feed(rundir)
    feeds.begin()
    feeds.end("finished")
    ((ledger,),) = [backend.ledgers]
    assert (ledger.index, ledger.step) == (2, 2)
    assert 0 <= ledger.metrics["ledger/useful_share"] <= 1


def test_a_tracker_that_comes_back_at_the_very_end_misses_nothing(rundir: RunDir) -> None:
    feeds, backend = feed(rundir)
    (one,) = feeds._feeds
    feeds.begin()
    backend.away = True
    journal(rundir, 1, 2)
    wait_until(lambda: one.error is not None)
    backend.away = False
    feeds.end("finished")
    assert (feeds.warnings, [entry.index for entry in backend.entries]) == ([], [1, 2])


@pytest.mark.slow
def test_a_tracker_that_is_slow_but_makes_progress_is_waited_for(rundir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(rundir, 1)
    feeds, backend = feed(rundir)
    feeds.begin()
    now = [0.0]

    def log(entries: list[Entry]) -> None:
        for _ in range(10):
            time.sleep(0.15)  # long enough that who waits looks at the clock
            now[0] += 15
            backend.moved()
        backend.entries += entries

    monkeypatch.setattr(backend, "log", log)
    monkeypatch.setattr("plugin_core.tracking.feed.time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    journal(rundir, 1, 2)
    feeds.end("finished", timeout_s=20)
    assert feeds.warnings == []
    assert backend.ended == [("finished", "")]


def test_a_required_tracker_that_is_away_fails_the_step(rundir: RunDir) -> None:
    feeds, backend = feed(rundir, MLflow(required=True))
    backend.away = True
    with pytest.raises(
        InfrastructureError, match=r"tracking.mlflow: cannot be reached \(nobody is there\), but is required"
    ):
        feeds.begin()


def test_eight_runs_at_once_do_not_mix(tmp_path: Path) -> None:
    found: dict[int, Listening] = {}

    def one(number: int) -> None:
        given = spec([]).model_copy(update={"run_config": RunConfig(name=f"run-{number}", storage_path=str(tmp_path))})
        place = RunDir.of(given)
        place.write_spec(given)
        journal(place, *range(1, 10 * number + 2))
        feeds, found[number] = feed(place)
        feeds.begin()
        feeds.end("finished")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: len(backend.entries) for number, backend in found.items()} == {n: 10 * n + 1 for n in range(8)}


def test_an_older_attempt_that_wakes_up_leaves_the_newer_ones_files_alone(rundir: RunDir) -> None:
    older, newer = (Staged(Subject(rundir, "train", attempt), "tensorboard") for attempt in (1, 2))
    for staged in (older, newer):
        (staged.folder / "events").write_text(str(staged.folder))
    rundir.claim(1, "test", "test")
    older.push()
    rundir.claim(2, "test", "test")
    newer.push()
    with pytest.raises(FencedError, match="a later attempt owns"):
        older.push()
    (own,) = newer.place.names()
    assert newer.place.child(own, "events").read() == str(newer.folder).encode()


def test_a_trial_that_its_search_stopped_early_is_no_failed_one_when_it_is_logged_again(rundir: RunDir) -> None:
    rundir.claim(1, "test", "test")
    rundir.record_end(1, AttemptEnd("succeeded"))
    stopped, failed = rundir.child("trial-a"), rundir.child("trial-b")
    failed.record_end(1, AttemptEnd("user_code", "no good"))
    assert _ended(stopped, 1, rundir.end(1)) == ("finished", "")
    assert _ended(failed, 1, rundir.end(1)) == ("failed", "no good")
    assert _ended(stopped, 1, AttemptEnd("cancelled", "stop")) == ("killed", "stop")


def test_the_link_of_a_tracker_is_reported_once_during_the_run(rundir: RunDir) -> None:
    told: list[Event] = []

    async def look_three_times() -> None:
        supervisor = Supervisor(rundir, cluster, listener=told.append)
        for looks in range(3):
            await supervisor.step()
            rundir.beat(1, Heartbeat(2 + looks, "training"))
            rundir.show_links(1, {"mlflow": "http://host/#/run"})
        await supervisor.close()

    with FakeCluster(plays=["hang"]) as cluster:
        run_sync(look_three_times())
    links = [(event.text, event.data) for event in told if event.kind == "link"]
    assert links == [("tracking.mlflow: http://host/#/run", {"mlflow": "http://host/#/run"})]
