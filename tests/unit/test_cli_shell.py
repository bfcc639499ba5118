"""`raytrain` in a shell: JSON, exit codes, completion, a live view, and the embedded head's dashboard."""

import http.client
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.console import Console
from typer.testing import CliRunner

from devtools.chaos import wait_until
from devtools.written_runs import STATES, Raytrain, write_run
from plugin_core import cli, errors
from plugin_core.cli import runs
from plugin_core.cli.exit_codes import EXIT_CODES
from plugin_core.clusters import local_head
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import StorageError
from plugin_core.runs.directory import AttemptEnd
from plugin_core.storage.location import Location

# ---- JSON


def test_each_command_that_prints_data_prints_one_json_document(storage: str, raytrain: Raytrain) -> None:
    rundir = write_run(storage, "run")
    Path(rundir.uri, "checkpoint_a001_000001").mkdir()
    Path(rundir.uri, "checkpoint_a001_000001/model").touch()

    def told(*arguments: str) -> Any:
        code, out, err = raytrain(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    (listed,), (watched,) = told("ls"), told("top", "--once")["runs"] or [None]
    assert (listed["name"], listed["uri"], listed["state"], listed["active"]) == ("run", rundir.uri, "succeeded", False)
    assert watched is None
    status = told("status", "run")
    assert (status["result"], status["reports"], status["metrics"]["epoch"]) == (True, 3, 2)
    assert [attempt["outcome"] for attempt in status["attempts"]] == ["succeeded"]
    assert told("result", "run")["kind"] == "train"
    (kept,) = told("checkpoints", "run")
    assert (kept["name"], kept["state"]) == ("checkpoint_a001_000001", "unregistered")
    pruned = told("prune", storage, "--older-than-days", "0")
    assert pruned == {"checkpoints": [f"{rundir.uri}/{kept['name']}"], "deleted": False, "aborted_uploads": 0}
    with FakeCluster() as cluster:
        cancelled = told("cancel", "run", "--address", cluster.address)
        checks = told("doctor", "--address", cluster.address, "--storage", storage)
    assert cancelled == {"run": rundir.uri, "state": "finished"}
    assert all(check["good"] for check in checks)


# ---- the embedded head


@pytest.fixture
def a_head(monkeypatch: pytest.MonkeyPatch) -> local_head.Head:
    head = local_head.Head("http://127.0.0.1:1", "t0ken", "mark", 1, 1.0, "/tmp/x", 4, 300.0)
    monkeypatch.setattr(local_head, "current", lambda: head)
    return head


@pytest.mark.parametrize("command", ["url", "token", "open"])
def test_without_a_head_its_url_and_token_are_refused_in_a_sentence(
    raytrain: Raytrain, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_head, "current", lambda: None)
    code, out, err = raytrain("cluster", command)
    assert (code, out) == (2, "")
    assert err.endswith("cluster: no embedded head is running; `raytrain cluster start` starts one\n")


@pytest.mark.parametrize(("option", "value"), [("idle_timeout_s", "nan"), ("idle_timeout_s", "0.0"), ("num_cpus", "0")])
def test_a_head_is_not_started_with_a_number_that_means_nothing(
    raytrain: Raytrain, monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    monkeypatch.setattr(local_head, "ensure", lambda *given: pytest.fail("it was started"))
    code, out, err = raytrain("cluster", "start", f"--{option.replace('_', '-')}={value}")
    assert (code, out) == (2, "")
    assert f"{option}: got {value}; expected" in err


def test_the_token_is_printed_by_its_own_command_alone(raytrain: Raytrain, a_head: local_head.Head) -> None:
    assert raytrain("cluster", "token") == (0, "t0ken\n", "")
    assert json.loads(raytrain("cluster", "token", "--json")[1]) == {"token": "t0ken"}
    assert raytrain("cluster", "url") == (0, "http://127.0.0.1:1\n", "")
    assert json.loads(raytrain("cluster", "url", "--json")[1]) == {"url": "http://127.0.0.1:1"}


class Browser:
    """In place of the user's: follows the page that it is given, as far as its door."""

    def __init__(self, comes: bool = True):
        self.comes = comes
        self.given = self.door = ""
        self.mode = 0
        self.answers: list[tuple[int, str | None, str | None]] = []

    def open(self, url: str) -> bool:
        self.given = url
        if self.comes:
            page = Path(url.removeprefix("file://"))
            self.mode = page.stat().st_mode & 0o777
            self.door = re.findall(r"http://127\.0\.0\.1:\d+/[\w-]+", page.read_text())[0]
            self.answers = [self.get(f"{self.door[:-5]}12345")]  # a stranger's guess
            with ThreadPoolExecutor(4) as several:  # then the page's address, four times at once
                self.answers += sorted(several.map(self.get, [self.door] * 4), key=lambda answer: answer[0])
        return self.comes

    @staticmethod
    def get(url: str) -> tuple[int, str | None, str | None]:
        host, _, path = url.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        connection.close()
        return answer.status, answer.headers["Location"], answer.headers["Set-Cookie"]


@pytest.fixture
def a_browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    browser = Browser()
    monkeypatch.setattr("webbrowser.open", browser.open)
    return browser


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCluster]:
    """An embedded head, whose dashboard a fake cluster plays."""
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    with FakeCluster(token="t0ken") as cluster:
        head = local_head.Head(cluster.address, "t0ken", "mark", 1, 1.0, "/tmp/x", 4, 300.0)
        monkeypatch.setattr(local_head, "current", lambda: head)
        yield cluster


@pytest.fixture
def slow_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second request comes while the first is answered."""
    sends = BaseHTTPRequestHandler.flush_headers
    monkeypatch.setattr(BaseHTTPRequestHandler, "flush_headers", lambda handler: (sends(handler), time.sleep(0.3)))


@pytest.mark.usefixtures("slow_answers")
def test_the_dashboard_opens_in_a_browser_that_is_logged_in(
    raytrain: Raytrain, running: FakeCluster, a_browser: Browser
) -> None:
    assert raytrain("cluster", "open") == (0, f"{running.address}\n", "")
    refused, entered, *again = a_browser.answers
    assert entered == (303, running.address, "ray-authentication-token=t0ken; HttpOnly; Path=/; SameSite=Strict")
    assert {refused, *again} == {(404, None, None)}, "its address cannot be guessed, and works once"
    assert "t0ken" not in a_browser.given + a_browser.door, "a browser's address shows in `ps`, and in its history"
    assert a_browser.door not in a_browser.given, "nor what the token can be got with"
    assert a_browser.mode == 0o600
    assert not Path(a_browser.given.removeprefix("file://")).exists()
    with pytest.raises(ConnectionRefusedError):
        a_browser.get(a_browser.door)


def test_without_a_browser_the_dashboards_url_is_printed_and_how_to_log_in(
    raytrain: Raytrain, running: FakeCluster, a_browser: Browser
) -> None:
    a_browser.comes = False
    code, out, err = raytrain("cluster", "open")
    assert (code, out) == (0, f"{running.address}\n")
    assert err.startswith("No browser came: open this URL in one on this machine; `raytrain cluster token` prints")
    assert "t0ken" not in out + err


def test_the_page_of_a_runs_job_opens_while_its_head_runs(
    raytrain: Raytrain, running: FakeCluster, a_browser: Browser, storage: str
) -> None:
    here, gone = write_run(storage, "here", "prepared"), write_run(storage, "gone", "training")
    assert "has no job yet" in raytrain("cluster", "open", "here")[2]
    receipt = here.claim(1, running.address, "session")
    assert receipt is not None
    code, out, err = raytrain("cluster", "open", "here")
    assert (code, out, err) == (0, f"{running.address}/#/jobs/{receipt.submission_id}\n", "")
    assert a_browser.answers[1][1] == out.strip()
    code, out, err = raytrain("cluster", "open", "gone")
    assert (code, out) == (2, "")
    assert f"run: got {gone.uri!r}, which has its job on another cluster, or on a head that is gone; expected" in err


# ---- exit codes


def all_errors(of: type[errors.RayTrainWorkflowsError]) -> list[type[errors.RayTrainWorkflowsError]]:
    mine = [kind for kind in of.__subclasses__() if kind.__module__ == errors.__name__]
    return [found for kind in mine for found in (kind, *all_errors(kind))]


def test_the_table_of_exit_codes_is_that_of_the_errors_and_of_the_docs(raytrain: Raytrain) -> None:
    told = {name: code for code, (names, _) in EXIT_CODES.items() for name in re.findall(r"\b[A-Z]\w+", names)}
    assert told == {kind.__name__: kind.exit_code for kind in all_errors(errors.RayTrainWorkflowsError)}
    assert errors.RayTrainWorkflowsError.exit_code in EXIT_CODES
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert {int(code): (names.replace("`", ""), meaning) for code, names, meaning in rows} == EXIT_CODES
    code, out, _ = raytrain("--help")
    assert code == 0
    words = " ".join(out.split())
    assert all(f"{code} {meaning}" in words for code, (_, meaning) in EXIT_CODES.items())


def test_the_docs_name_every_command_with_every_option() -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text().partition("## Commands")[2].partition("\n## ")[0]

    def commands(group: Any, before: str) -> list[tuple[str, Any]]:
        found = []
        for name, command in group.commands.items():
            more = (
                commands(command, f"{before} {name}") if hasattr(command, "commands") else [(f"{before} {name}", command)]
            )
            found += more
        return found

    for name, command in commands(typer.main.get_command(cli.app), "raytrain"):
        (row,) = re.findall(rf"^\| `{re.escape(name)}\b[^|]*\|.*$", page, re.MULTILINE) or [""]
        assert row, name
        for parameter in command.params:
            option = parameter.opts[0]
            assert option in ("--help", *re.findall(r"--[a-z-]+", row)) or not option.startswith("-"), (name, option)


# ---- completion


def completed(words: str) -> list[str]:
    """What bash is offered after these words."""
    environment = {"_RAYTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = CliRunner().invoke(cli.app, [], prog_name="raytrain", env=environment)
    assert done.exit_code == 0, done.output
    return done.stdout.split()


def test_the_shell_completes_commands_and_names_of_runs(storage: str, tmp_path: Path) -> None:
    write_run(storage, "digits-1")
    write_run(storage, "digits-2")
    write_run(str(tmp_path / "other"), "digits-3")
    for name in ("\x1b[31m", "$(reboot)", "two words", "'"):
        Path(storage, f"digits-{name}").mkdir()
    assert completed("raytrain st") == ["status"]
    assert completed("raytrain result di") == ["digits-1", "digits-2"]
    assert completed(f"raytrain logs --storage {tmp_path}/other di") == ["digits-3"]
    assert completed("raytrain status ./di") == [], "a path: the shell's own"


@pytest.mark.parametrize("where", ["/nowhere", "/dev/null", "ftp://x", "a\x1bb"])
def test_completion_never_raises(storage: str, where: str) -> None:
    assert completed(f"raytrain result --storage {where} di") == []


def test_a_storage_that_does_not_answer_completes_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        where = f"s3://bucket?endpoint_override=127.0.0.1:{deaf.getsockname()[1]}&scheme=http"
        words = f"raytrain result --storage {where} di"
        environment = {"_RAYTRAIN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "4"}
        environment |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        command = [Path(sys.executable).with_name("raytrain")]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- top


def test_top_shows_what_is_active(storage: str, raytrain: Raytrain) -> None:
    for state in STATES:
        write_run(storage, f"of-{state}", state)
    code, out, _ = raytrain("top", "--once")
    assert code == 0
    assert f"{storage}: 2 active, 3 others" in out
    assert [name for name in STATES if f"of-{name}" in out] == ["waiting", "training"]


def test_what_ends_while_it_is_watched_stays_and_what_begins_comes(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = write_run(storage, "mine", "training")
    write_run(storage, "over", "failed")
    watched = runs._Watched(Location.of(storage))
    watched.look()
    assert [run.name for run in watched.shown()] == ["mine"]
    rundir.record_end(1, AttemptEnd("user_error"))
    resumed = write_run(storage, "over", "waiting")
    resumed.claim(2, "http://127.0.0.1:1", "session")
    write_run(storage, "new", "waiting")
    watched.look()
    assert {run.name: run.state for run in watched.shown()} == {"new": "waiting", "mine": "failed"}
    monkeypatch.setattr(runs, "ALL_S", 0.0)
    watched.look()
    assert {run.name for run in watched.shown()} == {"new", "mine", "over"}, "it goes on again"


def test_a_storage_that_fails_meanwhile_leaves_the_last_view_and_says_so(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(storage, "mine", "training")
    watched = runs._Watched(Location.of(storage))
    watched.look()

    def fails(*_: Any) -> Any:
        raise StorageError("the bucket is asleep")

    monkeypatch.setattr("plugin_core.runs.overview.overviews", fails)
    watched.look_again()
    assert [run.name for run in watched.shown()] == ["mine"]
    console = Console()
    with console.capture() as captured:
        console.print(watched.view())
    assert captured.get().splitlines()[-1] == "the bucket is asleep"


@pytest.mark.parametrize("terminal", [True, False])
def test_ctrl_c_leaves_top_without_a_word(storage: str, terminal: bool) -> None:
    write_run(storage, "mine", "training")
    reader, writer = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "plugin_core.cli", "top", "--every", "0.5"]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writer)
    os.set_blocking(reader, False)
    shown = bytearray()

    def look() -> bool:
        try:
            shown.extend(os.read(reader, 65536))
        except (BlockingIOError, OSError):
            pass
        return shown.count(b"training") >= 2

    try:
        wait_until(look)
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read() if process.stderr else None) == (0, "")
    finally:
        process.kill()
        os.close(reader)
