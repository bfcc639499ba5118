"""The embedded head: shared, private, stopped when idle, and completely gone afterwards."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import requests

from devtools.servers import alive, command_of
from plugin_core import LocalCluster
from plugin_core.clusters import local_head
from plugin_core.clusters.local_head import Head
from tests.support.namespaces import needs_namespaces, on_host, with_clock_set_by


def test_it_is_shared_between_processes(head: Head) -> None:
    code = "from plugin_core.clusters import local_head; print(local_head.ensure().mark)"
    found = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert {process.communicate()[0].strip() for process in found} == {head.mark}


def test_its_state_is_readable_by_its_owner_only(head: Head) -> None:
    folder = local_head.state_dir()
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "state.json").stat().st_mode & 0o077 == 0
    assert Path(head.temp_dir).stat().st_mode & 0o077 == 0


def pages(head: Head) -> set[str]:
    """The modules of its dashboard that are processes."""
    titles = [" ".join(command_of(process)) for process in head.processes()]
    return {found[1] for title in titles if (found := re.match(r"ray-dashboard-(\w+)-\d", title))}


def test_its_dashboard_has_only_what_a_step_needs(head: Head) -> None:
    assert pages(head) == {"JobHead", "StateHead", "NodeHead", "ReportHead"}


@pytest.mark.slow
def test_its_dashboard_has_all_pages_where_they_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    try:
        assert pages(local_head.ensure(full_dashboard=True)) >= {"JobHead", "TrainHead", "DataHead", "MetricsHead"}
    finally:
        local_head.stop()


@pytest.mark.slow
def test_a_browser_gets_a_cookie_that_opens_the_dashboard(head: Head) -> None:
    """What `raytrain cluster open` gives to a browser."""
    url = f"{head.address}/api/jobs/"
    assert requests.get(url, timeout=30).status_code == 401

    async def ask() -> str:
        async with await LocalCluster().connect() as client:
            return await client.browser_cookie()

    cookie = asyncio.run(ask())
    assert {part.strip() for part in cookie.split(";")} >= {"HttpOnly", "SameSite=Strict", "Path=/"}
    assert requests.get(url, headers={"Cookie": cookie.partition(";")[0]}, timeout=30).json() is not None


def test_it_listens_on_loopback_only(head: Head) -> None:
    addresses: set[str] = set()
    for process in head.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # an earlier job's may just end
            found = process.net_connections(kind="inet")
            addresses |= {connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN}
    assert addresses
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.slow
def test_it_stops_when_idle_or_when_its_keeper_is_killed_and_leaves_others_alone(
    head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "idle"))
    idle = local_head.ensure(num_cpus=1, idle_timeout_s=1.0)
    _until(lambda: local_head.current() is None and not idle.processes())

    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "killed"))
    killed = local_head.ensure(num_cpus=1)
    os.kill(killed.keeper_pid, signal.SIGKILL)
    _until(lambda: not alive(killed.keeper_pid))
    assert local_head.current() is None
    assert not local_head.stop(), "there is none, but what the killed keeper left is ended"
    assert killed.processes() == []
    assert not Path(killed.temp_dir).exists()
    assert alive(head.keeper_pid), "the other head of this machine lives"


@needs_namespaces
@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_clock_changed_by_an_hour_leaves_a_live_head_alone(head: Head, tmp_path: Path, step_s: int) -> None:
    code = "import psutil; from plugin_core.clusters import local_head; print(psutil.boot_time(), local_head.ensure().mark)"
    command = with_clock_set_by(step_s, tmp_path, [sys.executable, "-c", code])
    booted, mark = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert abs(float(booted) - psutil.boot_time() - step_s) < 60, "this process saw the step"
    assert mark == head.mark
    assert alive(head.keeper_pid)


@pytest.mark.slow
def test_a_clock_set_back_by_an_hour_does_not_keep_an_idle_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "idle"))
    idle = local_head.ensure(num_cpus=1, idle_timeout_s=3.0)
    used = time.time() + 3600
    os.utime(local_head.state_dir() / "last_used", (used, used))
    _until(lambda: local_head.current() is None and not idle.processes())


@pytest.mark.slow
@needs_namespaces
def test_two_hosts_that_share_a_home_have_a_head_each_and_leave_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "nfs"))
    ours = local_head.ensure(num_cpus=1)

    def there(code: str) -> list[str]:
        command = on_host("other", [sys.executable, "-c", f"from plugin_core.clusters import local_head as h; {code}"])
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    try:
        assert there("print(h.current(), h.stop())") == ["None", "False"]
        (mark,) = there("print(h.ensure(num_cpus=1).mark)")
        assert mark != ours.mark
        assert local_head.current() == ours
        assert local_head.stop()
        assert there("print(h.current().mark)") == [mark], "stopping ours is nothing to theirs"
    finally:
        local_head.stop()
        there("h.stop()")
    assert ours.processes() == []


def _until(true: object, timeout_s: float = 600) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
