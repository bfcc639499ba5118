"""Shared fixtures: one real Ray head and one real S3 API for all tests that need them, completely stopped at the end."""

import http.server
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Trail
from devtools.ray_heads import OwnHead
from devtools.servers import embedded_head, s3_server
from plugin_core import LocalCluster
from plugin_core.clusters.local_head import Head
from plugin_core.storage.location import be_patient
from plugin_core.supervisor.observer import Observer
from tests.support import leftovers
from tests.support.clouds import azurite, gcs_server

# a suite that a shell started in the background ignores SIGINT, and so would every program that a test interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)


#: Which files share an engine's server, and with `-n` a process: a server takes a minute to start and a tenth of a core.
ENGINES = {
    "airflow": ("tests/e2e/test_airflow", "tests/e2e/test_all_engines", "tests/e2e/test_canaries"),
    "prefect": ("tests/e2e/test_prefect",),
}
#: The files that take longest begin first, so that no process works on one at the end while the others are idle.
LONGEST_FIRST = (
    *ENGINES["airflow"],
    *ENGINES["prefect"],
    "tests/integration/test_frameworks",
    "tests/chaos/",
    "tests/e2e/",
    "tests/integration/",
)


def pytest_configure(config: pytest.Config) -> None:
    if leftovers.MARK not in os.environ:  # neither a worker of pytest-xdist, nor a pytest that a test runs
        os.environ[leftovers.MARK] = secrets.token_hex(8)
        config.add_cleanup(_end_leftovers)


def _end_leftovers() -> None:
    if left := leftovers.end_leftovers(os.environ.pop(leftovers.MARK)):
        print(f"\nended {len(left)} processes that the tests left behind:", *left, sep="\n  ", file=sys.stderr, flush=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, part in enumerate(LONGEST_FIRST) if item.nodeid.startswith(part)), 99))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A run takes up to hours: print a failure at once."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        where = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        print(f"\n{report.nodeid} failed in its {report.when}: {where[:500]}", file=sys.stderr, flush=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests share a process where `-n` runs them in several: those of a file, and all of an engine."""
    from xdist.scheduler import LoadScopeScheduling

    class ByServer(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return next((engine for engine, files in ENGINES.items() if file.startswith(files)), file)

    return ByServer(config, log)


@pytest.fixture(autouse=True)
def impatient() -> None:
    """What a test does in this process as a driver would leaves no storage to be waited for by the next ones."""
    be_patient(False)


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with embedded_head(tmp_path_factory.mktemp("home")) as head:
        yield head


@pytest.fixture
def cluster(head: Head) -> LocalCluster:
    return LocalCluster()


@pytest.fixture
def trail(tmp_path: Path) -> Trail:
    return Trail(tmp_path / "trail.jsonl")


@pytest.fixture
def pending_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the driver enforces `limits.scheduling_timeout_s`, however long a busy machine takes to start it."""
    monkeypatch.setattr(Observer, "_pending_since", property(lambda self: None, lambda self, since: None), raising=False)


@pytest.fixture
def own_head() -> Iterator[Callable[..., OwnHead]]:
    """Starts Ray heads of the test's own."""
    heads: list[OwnHead] = []

    def start(**options: Any) -> OwnHead:
        heads.append(OwnHead(**options))
        return heads[-1]

    yield start
    for head in heads:
        head.close()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3") / "server.log") as uri:
        yield uri


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with azurite(tmp_path_factory.mktemp("azurite")) as uri:
        yield uri


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gcs_server(tmp_path_factory.mktemp("gcs") / "server.log") as uri:
        yield uri


@pytest.fixture
def other_server() -> Iterator[str]:
    """A web server that is no Ray dashboard: it answers every GET with a small page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()
