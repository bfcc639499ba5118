"""Text from a run, a report or a file stays text: no terminal, page, link or import acts on it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from devtools.written_runs import write_run
from plugin_core import (
    EvaluationResult,
    RunRef,
    cli,
)
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError, from_outcome
from plugin_core.errors.plain_text import plain
from plugin_core.runs.directory import AttemptEnd, Receipt, RunDir
from plugin_core.runs.history import History
from plugin_core.storage.location import Location
from plugin_core.supervisor import report
from plugin_core.supervisor.follower import Event, Follower
from prefect_integration import hooks
from tests.support.fake_steps import spec_at
from tests.support.kept_logs import keep_text


def test_a_path_in_a_runs_file_is_followed_only_inside_the_run(tmp_path: Path) -> None:
    home = Location.of(str(tmp_path / "run"))
    home.child("plot.png").write(b"1")
    (tmp_path / "secret").write_bytes(b"2")
    (tmp_path / "run/link.png").symlink_to(tmp_path / "secret")
    (tmp_path / "again").symlink_to(tmp_path / "run")
    for uri in ("plot.png", "link.png", "../secret"):
        assert (home.inside(f"{home.uri}/{uri}") is not None) is (uri == "plot.png")
    assert home.inside(f"{tmp_path}/again/plot.png") is not None
    assert home.inside(str(tmp_path / "run-2/plot.png")) is None
    assert home.inside("s3://b/run/plot.png") is None
    bucket = Location("s3://b/run?region=x")
    found = bucket.inside("s3://b/run/plot.png?endpoint_override=evil.example")
    assert found is not None
    assert found.uri == "s3://b/run/plot.png?region=x"
    for uri in ("s3://other/run/plot.png", "s3://b/run-2/x", str(tmp_path), "gs://b/run/plot.png"):
        assert bucket.inside(uri) is None


def test_a_report_shows_no_file_but_the_runs_own_plots(tmp_path: Path) -> None:
    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path))
    png = b"\x89PNG" + b"x" * 10
    (tmp_path / "outside.png").write_bytes(png)
    rundir.location.child("inside.png").write(png)
    rundir.location.child("text.png").write(b"words")
    plots = {"in": f"{rundir.uri}/inside.png", "out": str(tmp_path / "outside.png"), "words": f"{rundir.uri}/text.png"}
    plots["up"] = f"{rundir.uri}/../outside.png"
    result = EvaluationResult(run=RunRef(uri=rundir.uri, name="x"), passed=True, plots=plots)
    page = report.markdown_report(rundir, result, History())
    assert page.count("data:image/png") == 1
    assert "![in]" in page


def test_text_of_a_run_stays_text_in_the_report(tmp_path: Path) -> None:
    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path))
    evil = "<img src=x onerror=alert(1)>![x](http://evil.example/p.png)[y](javascript:alert(1))`|\x1b[31m\n# top"
    result = EvaluationResult(
        run=RunRef(uri=rundir.uri, name="x"),
        passed=False,
        metrics={evil: evil},
        failed={evil: evil},
        checkpoint={"uri": f"{rundir.uri}/a`b|c"},
    )
    page = report.markdown_report(rundir, result, History())
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\n# top" not in page
    assert not re.search(r"(?<!\\)\[[xy](?<!\\)\]", page)
    assert f"| checkpoint | `{rundir.uri}/a'b\\|c` |" in page


@pytest.mark.parametrize(
    ("address", "shown_as"),
    [
        ("http://ray:8265", "http://ray:8265/#/jobs/rt-1"),
        ("https://ray/proxy/", "https://ray/proxy/#/jobs/rt-1"),
        ("javascript:alert(1)//", ""),
        ("data:text/html,x", ""),
        ("http://u:p@ray", ""),
        ("http://ray/)![x](y", "http://ray/%29!%5Bx%5D%28y/#/jobs/rt-1"),
        ("http://[::1", ""),
    ],
)
def test_only_a_plain_address_becomes_a_jobs_link(address: str, shown_as: str) -> None:
    receipt = Receipt(attempt=1, submission_id="rt-1", nonce="n", address=address, incarnation="s")
    assert receipt.job_url() == shown_as


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("\x1b[31mred\x1b[0m \x1b[38;2;1;2;3mx", "red x"),
        ("\x1b]0;title\x07a\x1b]8;;http://evil\x1b\\b\x1b]52;c;cm0=\x07c", "abc"),
        ("\x1bP+q544e\x1b\\a\x1b_x\x1b\\b\x1b^y\x1b\\c\x9b31md\x9d0;t\x9ce", "abcde"),
        ("\x1b]0;never ends\nnext line", "\nnext line"),
        ("\x1bc\x1b(Ba\x1b7b\x1b", "ab"),
        ("50%\r100%\r\ndone\x08\x08", "50%\n100%\ndone"),
        ("a\u202eb\u2066c\x00d\x7fe\tf ü 🎉", "abcde\tf ü 🎉"),
    ],
)
def test_no_escape_code_reaches_a_terminal(said: str, read: str) -> None:
    assert plain(said) == read
    assert from_outcome("user_error", said, said).message == read
    heard: list[Event] = []
    Follower(RunDir.at("/nowhere"), heard.append).tell(Event("log", said))
    assert heard[0].text == read


def raytrain(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def test_the_command_imports_no_file_of_the_current_folder(tmp_path: Path) -> None:
    for module in ("pyarrow", "yaml", "plugin_core", "rich"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    (tmp_path / "mine.py").write_text("")
    command = [Path(sys.executable).with_name("raytrain"), "result", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "expected a run directory" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "imported").exists()


def test_a_log_is_shown_in_a_terminal_whose_encoding_lacks_its_characters(tmp_path: Path) -> None:
    keep_text(write_run(str(tmp_path), "mine"), "caf\u00e9 \u2713\n")
    command = [sys.executable, "-m", "plugin_core.cli", "logs", str(tmp_path / "mine")]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "caf? ?\n"), done.stderr


def test_a_spec_files_name_becomes_the_runs_name(tmp_path: Path) -> None:
    file = tmp_path / "my spec (1).g2.yaml"
    file.write_text("{framework: python, train_loop_per_worker: 'tests.support.fake_steps:LOOP'}")
    with FakeCluster() as cluster:
        done = raytrain("run", str(file), "--storage", str(tmp_path / "runs"), "--address", cluster.address)
        assert done.exit_code == 0, done.output
        (name,) = [path.parent.name for path in (tmp_path / "runs").glob("*/.step")]
        assert re.fullmatch(r"my_spec_1_\.g2-[0-9a-f]{10}", name)
        refused = raytrain("run", str(file), "--name", "../x", "--address", "http://127.0.0.1:9")
    assert isinstance(refused.exception, SpecError)
    assert "run_config.name: got '../x'" in refused.exception.message


def test_the_status_of_a_run_is_text(tmp_path: Path) -> None:
    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path))
    rundir.claim(1, "http://x", "s")
    rundir.record_end(1, AttemptEnd("user_error", "[/b] [red]x\x1b]0;t\x07 \x1b[31mred"))
    done = raytrain("status", rundir.uri)
    assert done.exit_code == 0, done.exception
    assert "[/b] [red]x red" in done.output
    assert "\x1b]" not in done.output


def test_a_traceback_of_the_command_shows_no_locals() -> None:
    """They may hold the token."""
    assert cli.app.pretty_exceptions_show_locals is False


def test_a_forged_artifact_keeps_no_other_step_from_its_cancel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYTRAIN_CLUSTERS", raising=False)
    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path))
    rundir.claim(1, "http://x", "s")
    forged = ["[]", "no JSON", '{"run": "ftp://u:hunter2@x", "cluster": {}}', '{"run": 5}']
    evil = {"run": rundir.uri, "cluster": {"kuberay": {"name": "t", "address": "http://evil/{name}"}}}
    found = [step for data in [*forged, json.dumps(evil)] if (step := hooks._step(data)) is not None]
    assert [step.rundir.uri for step in found] == [rundir.uri]
    assert "its driver stops by itself: kuberay.address: got 'http://evil/" in hooks._cancel(found[0])
    assert rundir.intent().cancel_through == 1
