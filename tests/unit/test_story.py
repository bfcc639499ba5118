"""The log that people read: lines made of a run's events, in one voice everywhere."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from plugin_core import EvaluateSpec, EvaluationResult, LocalCluster, RunRef, TrainResult, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.errors import UserCodeError
from plugin_core.errors.plain_text import plain
from plugin_core.runs.directory import AttemptEnd, Phase, RunDir
from plugin_core.specs.step_kinds import step_kind
from plugin_core.supervisor import outcome, story
from plugin_core.supervisor.events import Event, Line
from plugin_core.supervisor.progress import Reading
from plugin_core.supervisor.screen import Screen
from plugin_core.supervisor.story import Story, phase_in_words, report_in_words
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at
from tests.support.recorded_logs import recorded

T = 1_800_000_000.0


def told(tmp_path: Path, log: str, entries: list[dict[str, Any]], **fields: Any) -> list[Line]:
    """The lines of a run with this job's log and journal, which ends well."""
    lines: list[Line] = []

    async def followed(cluster: FakeCluster) -> None:
        rundir = await prepare(spec_at(tmp_path, **fields), cluster, log=lines.append)
        supervisor = Supervisor(rundir, cluster, log=lines.append)
        await supervisor.submit()
        rundir.show_phases(1, [Phase(T, "fitting the preprocessor"), Phase(T + 5, "training")])
        written = [json.dumps({"attempt": 1, **entry}).encode() + b"\n" for entry in entries]
        rundir.step.child("journal/001-0000001.jsonl").write(b"".join(written))
        await supervisor.step()
        run_ref = RunRef(uri=rundir.uri, name="run", attempt=1)
        rundir.write_result(TrainResult(run=run_ref, metrics={"epoch": 14, "loss": 0.25}, reports=15, warnings=["a hint"]))
        rundir.record_end(1, AttemptEnd("succeeded", elapsed_s=200.0))
        cluster.jobs = dict.fromkeys(cluster.jobs, "SUCCEEDED")
        await supervisor.run()

    with FakeCluster(plays=["hang"], log=log) as cluster:
        run_sync(followed(cluster))
    return lines


def fifteen_reports() -> list[dict[str, Any]]:
    begin = [
        {"time": T + 6, "phase": "scheduling"},
        {"time": T + 9, "phase": "running", "workers": 2},
        {"time": T + 9, "phase": "running"},
    ]
    reports = [
        {"time": T + 10 + n, "report": n + 1, "metrics": {"epoch": n, "loss": 1 / (n + 1)}, "checkpoint": f"c{n}"}
        for n in range(15)
    ]
    return [*begin, *reports, {"time": T + 26, "phase": "finished"}]


def test_a_healthy_training_of_15_reports_takes_at_most_40_lines(tmp_path: Path) -> None:
    lines = told(tmp_path, recorded("healthy"), fifteen_reports(), train_loop_config={"epochs": 15})
    shown = [text for line in lines for text in line.lines or [line.text]]
    assert len(shown) <= 40
    job = next(text for text in shown if text.startswith("attempt 1 is job rt-"))
    begins = ["train run on a fake cluster; run directory: ", "submitting attempt 1", job]
    begins += ["fitting the preprocessor", "training", "waiting for the workers", "2 workers started"]
    begins += ["report 1: epoch=0 loss=1 (7%); c0 is kept", "report 3: ", "report 5: ", "report 15: epoch=14 loss=0.06667"]
    begins += ["warning: a hint", "trained: 15 reports; last epoch=14 loss=0.25", "attempt 1 took 3 min; more: `raytrain"]
    places = [next(n for n, text in enumerate(shown) if text.startswith(begin)) for begin in begins]
    assert places == sorted(places)
    assert "report 2: " not in "\n".join(shown)
    assert [line.time for line in lines if line.text.startswith(("fitting", "report 15"))] == [T, T + 24]
    assert not any("TrainingReport" in text or "PreemptionWatcher" in text for text in shown)


@pytest.mark.parametrize("embedded", [True, False])
def test_a_job_on_an_embedded_head_is_named_with_how_to_see_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedded: bool
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    if embedded:
        monkeypatch.setattr(FakeCluster, "identity", LocalCluster().identity)
    (job,) = [line.text for line in told(tmp_path, "", []) if line.text.startswith("attempt 1 is job rt-")]
    assert job.endswith(f"; `raytrain cluster open {tmp_path}/run` opens its page") is embedded
    assert (";" in job) is embedded


def test_what_waits_to_be_shown_is_the_last_report_and_comes_before_what_happens_next() -> None:
    lines: list[Line] = []
    tell = Story(lines.append)
    for number, at in enumerate((0.0, 0.5, 1.0, 2.5, 3.0)):
        tell(Event("report", f"report {number}", time=T + at))
    assert [line.text for line in lines] == ["report 0", "report 3"]
    tell(Event("log", "hello"))
    tell(Event("phase", "collecting"))
    assert [line.text for line in lines[2:]] == ["the job's log, 1 line", "report 4", "collecting"]


def test_a_report_that_nothing_follows_is_shown_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Line] = []
    tell, now = Story(lines.append), [100.0]
    monkeypatch.setattr(story.time, "monotonic", lambda: now[0])
    for number, at in enumerate((0.0, 0.5)):
        tell(Event("report", f"report {number}", time=T + at))
        tell.pause()
    assert len(lines) == 1
    now[0] += 2.0
    tell.pause()
    assert [line.text for line in lines] == ["report 0", "report 1"]


def test_a_users_exception_is_no_restart() -> None:
    why = "the train function raised ValueError: the data is bad (rank 0)"
    assert phase_in_words({"phase": "failed", "why": why}) == why


def test_why_workers_restart_is_a_line() -> None:
    entry = {"phase": "restarting", "why": "worker rank 1 (pid 7, vm) was killed", "failure": 1, "most": 3}
    assert phase_in_words(entry).endswith("was killed; failure 1 of 3; starting over, as there is no checkpoint yet")
    words = phase_in_words({**entry, "most": -1, "from": "checkpoint_16, step 160"})
    assert words == "worker rank 1 (pid 7, vm) was killed; failure 1; resuming from checkpoint_16, step 160"


def test_a_batch_inference_says_how_many_rows_are_predicted() -> None:
    assert phase_in_words({"phase": "predicting", "rows": 1200}) == "predicting: 1200 rows so far"


def test_a_search_says_how_many_trials_are_done() -> None:
    metrics = {"trial": "ab12", "loss": 0.5, "best": 0.25, "trials_over": 3, "progress": 0.3}
    entry = {"report": 7, "metrics": metrics, "checkpoint": None, "trials": 10}
    assert report_in_words(entry, Reading(0.3)) == "trial ab12: loss=0.5 best=0.25; 3 of 10 trials done"


def test_a_group_is_titled_by_its_worst_line_and_has_its_level() -> None:
    lines: list[Line] = []
    tell = Story(lines.append)
    tell(Event("log", "begin\n(W pid=1) WARNING: slow\n(W pid=1) RuntimeError: broken\nException: later\nend"))
    tell(Event("log", "begin\n(W pid=1) WARNING: slow\nend"))
    tell(Event("log", "begin\nend"))
    titles = [("the job's log, 5 lines: RuntimeError: broken", logging.ERROR)]
    titles += [("the job's log, 3 lines: WARNING: slow", logging.WARNING), ("the job's log, 2 lines", logging.INFO)]
    assert [(line.text, line.level) for line in lines] == titles
    assert lines[2].lines == ("begin", "end")


def test_a_result_is_returned_even_if_it_cannot_be_put_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(spec: Any, result: Any) -> list[str]:
        raise KeyError("loss")

    declared = dataclasses.replace(step_kind("train"), words=broken)
    monkeypatch.setattr(outcome, "step_kind", lambda kind: declared)
    told: list[Event] = []
    with FakeCluster(metrics={"loss": 0.5}) as cluster:
        assert run(spec_at(tmp_path), cluster, told.append, progress=False).metrics == {"loss": 0.5}
    assert told[-1].text.startswith("finished: loss=0.5\nattempt 1")


def test_a_failed_gate_is_a_warning_and_the_rest_of_the_outcome_is_not(tmp_path: Path) -> None:
    told: list[Event] = []
    (tmp_path / "checkpoint").mkdir()
    fields = {"evaluate": "devtools.steps:evaluate", "checkpoint": str(tmp_path / "checkpoint")}
    spec = EvaluateSpec(**fields, thresholds={"accuracy": {"min": 0.95}}).with_name("gate", str(tmp_path))
    gate = RunDir.at(f"{tmp_path}/gate")
    gate.write_spec(spec)
    failed = {"accuracy": "0.9 < min 0.95 (by 0.05)"}
    result = EvaluationResult(run=RunRef(uri=gate.uri, name="gate"), passed=False, failed=failed, metrics={"accuracy": 0.9})
    run_sync(outcome.tell_outcome(gate, result, told.append))
    assert [(event.text.split("\n")[0], event.level) for event in told] == [
        ("failed: accuracy 0.9 < min 0.95 (by 0.05)", logging.WARNING),
        ("metrics: accuracy=0.9", logging.INFO),
    ]


def test_a_failure_is_told_after_what_led_to_it_and_says_where_to_look(tmp_path: Path) -> None:
    lines: list[Line] = []
    with FakeCluster(plays=["user_error"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        with pytest.raises(UserCodeError):
            run_sync(Supervisor(rundir, cluster, log=lines.append).run())
    texts = [line.text for line in lines]
    assert texts.index("the job's log, 1 line") < texts.index("failed: played: user_error")
    assert [line.level for line in lines if line.text.startswith("failed: ")] == [logging.ERROR]
    assert texts[-1].startswith(f"more: `raytrain status {rundir.uri}`")


def test_an_operator_that_defers_leaves_progress_to_the_trigger(tmp_path: Path) -> None:
    lines: list[Line] = []
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        for _ in range(2):  # it attaches to the job the second time
            run_sync(Supervisor(rundir, cluster, log=lines.append).submit())
    assert [line.text[:16] for line in lines] == [
        "submitting attem",
        "attempt 1 is job",
        "attempt 1 is job",
        "the job is runni",
    ]


def test_run_shows_lines_on_standard_error_and_nothing_without_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeCluster(metrics={"loss": 0.5}) as cluster:
        run(spec_at(tmp_path), cluster)
        shown = capsys.readouterr()
        run(spec_at(tmp_path / "quiet"), cluster, progress=False)
    assert capsys.readouterr() == ("", "")
    assert shown.out == ""
    assert " trained: 1 report; last loss=0.5\n" in shown.err
    assert " | a line of the fake job\n" in shown.err


def test_a_terminal_shows_a_bar_below_the_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    heard: list[Event] = []
    with Screen(listener=heard.append) as screen:
        assert screen.log is not None
        assert screen.listener is not None
        screen.log(Line("2 workers started"))
        screen.listener(Event("report", "report 2: [red]loss=1", reading=Reading(0.4, 1.0, 45.0)))
        screen.log(Line("report 2"))
    shown = plain(capsys.readouterr().err)
    assert "2 workers started\n" in shown
    bar = next(line for line in shown.split("\n") if "40%" in line)
    assert "45 s left" in bar
    assert "report 2: [red]loss=1" in bar
    assert [event.text for event in heard] == ["report 2: [red]loss=1"]


def test_a_head_that_has_to_be_started_is_a_line_before_it_is(tmp_path: Path) -> None:
    class Sleeping(FakeCluster):
        async def lives(self) -> bool:
            return False

        async def connect(self) -> JobsClient:
            lines.append(Line("connecting"))
            return await super().connect()

    lines: list[Line] = []
    with Sleeping() as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster, log=lines.append))
        assert [line.text for line in lines[1:]] == ["starting a fake cluster", "connecting"]
        run_sync(Supervisor(rundir, cluster, log=lines.append).submit())
    texts = [line.text for line in lines[3:]]
    assert texts[:3] == ["submitting attempt 1", "starting a fake cluster", "connecting"]


def test_a_reader_in_another_process_gets_each_phase_of_the_driver_once(tmp_path: Path) -> None:
    texts: list[str] = []

    async def looks(rundir: RunDir, cluster: FakeCluster) -> None:
        supervisor = Supervisor(rundir, cluster, since_attempt=0, log=lambda line: texts.append(line.text), reader="try 1")
        await supervisor.step()
        await supervisor.step()
        await supervisor.close()

    phases = [Phase(T, "fitting the preprocessor"), Phase(T + 1, "training")]
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        for known in (1, 2, 2):
            rundir.show_phases(1, phases[:known])
            run_sync(looks(rundir, cluster))
    assert [text for text in texts if text in ("fitting the preprocessor", "training")] == [
        "fitting the preprocessor",
        "training",
    ]


def test_a_damaged_file_of_phases_holds_up_nothing(tmp_path: Path) -> None:
    with FakeCluster(plays=["linger"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        rundir.step.child("attempts/001.phases.json").write(b'[{"time": "noon", "phase": 1}]')
        assert rundir.phases(1) == []
        rundir.show_phases(1, [Phase(float("1e300"), "odd"), Phase(T, "training")])
        assert [phase.phase for phase in rundir.phases(1)] == ["odd", "training"]


def test_user_text_is_shown_as_plain_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeCluster(log="[red]\x1b[2J\x1b]0;title\x07markup[/nothing]\n") as cluster:
        run(spec_at(tmp_path), cluster)
    assert " | [red]markup[/nothing]\n" in capsys.readouterr().err
