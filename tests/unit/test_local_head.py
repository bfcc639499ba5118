"""What one host, or container, may know of the embedded head of another."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from plugin_core import LocalCluster
from plugin_core.clusters import local_head, machine
from plugin_core.clusters import local_head_keeper as keeper
from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.local_head import Head
from plugin_core.errors import ClusterUnreachableError, SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from plugin_core.supervisor import timings
from plugin_core.supervisor.supervisor import Event, Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at
from tests.support.namespaces import CONTAINER, needs_namespaces, on_host, with_clock_set_by

KEEPER = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_SH); print(flush=True); input()"


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder of another container's head, whose keeper is gone."""
    folder = tmp_path / "head-0123-4567"
    folder.mkdir()
    (folder / local_head.ALIVE).touch()
    (folder / local_head.PLACE).write_text(json.dumps({"host": "elsewhere", "machine": "", "boot": machine.boot()}))
    return folder


def identity(folder: Path) -> str:
    return f"local head of elsewhere:{folder}"


def test_a_head_counts_as_gone_only_when_nobody_locks_its_file(left: Path) -> None:
    command = [sys.executable, "-c", KEEPER, str(left / local_head.ALIVE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        assert not local_head.is_gone(identity(left))
        keeper.kill()
    assert local_head.is_gone(identity(left))


def test_a_head_knows_itself_once_its_whole_address_is_in_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "ray_current_cluster"
    assert not keeper.knows_itself(str(tmp_path), [6379])
    for written, knows in (("", False), ("127.0.0.1:63", False), ("127.0.0.1:6379", True), ("127.0.0.1:16379", False)):
        file.write_text(written)
        assert keeper.knows_itself(str(tmp_path), [6379]) == knows


def test_unknown_facts_about_a_head_prove_nothing(left: Path, tmp_path: Path) -> None:
    assert not local_head.is_gone(identity(tmp_path / "on another volume"))
    assert not local_head.is_gone("https://ray.example:8265")
    (left / local_head.PLACE).write_text(json.dumps({"host": "elsewhere", "machine": "1", "boot": "of another kernel"}))
    assert not local_head.is_gone(identity(left)), "its lock may be invisible here"
    mine = {"host": socket.gethostname(), "machine": machine.installation(), "boot": "the one before"}
    (left / local_head.PLACE).write_text(json.dumps(mine))
    assert local_head.is_gone(identity(left)) is bool(machine.installation()), "this machine was started anew since"


def test_the_next_attempt_starts_at_once_if_another_containers_head_is_proven_dead(tmp_path: Path, left: Path) -> None:
    told, attempt = resumed(tmp_path, identity(left), Limits(heartbeat_ttl_s=0.2))
    assert attempt == 2
    assert "submitting attempt 2: attempt 1 was lost: the cluster that ran it is gone" in told
    assert any(f"the keeper of the {identity(left)} is dead" in text for text in told)


@pytest.mark.parametrize("given", [None, 0.5], ids=["by default", "as long as told"])
@pytest.mark.parametrize(
    "before", ["local head of elsewhere:/gone/head-0123-4567", "local head of elsewhere:/gone/head-0123"]
)
def test_an_embedded_head_that_nobody_can_query_is_waited_for_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: float | None, before: str
) -> None:
    """Also with a receipt of an earlier version, which did not record the host."""
    monkeypatch.setattr(timings, "EMBEDDED_WAIT_S", 0.6)
    told, attempt = resumed(tmp_path, before, Limits(heartbeat_ttl_s=0.2, unreachable_timeout_s=given))
    assert attempt == 2
    waits = f"only elsewhere can query it, so the next attempt starts after {given or 0.6:g} s of silent heartbeat"
    assert any(text.startswith("waiting: ") and waits in text for text in told)


def test_a_cluster_by_address_that_this_call_cannot_query_is_waited_for_indefinitely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "EMBEDDED_WAIT_S", 0.2)
    with pytest.raises(TimeoutError):
        resumed(tmp_path, "https://ray.example:8265", Limits(heartbeat_ttl_s=0.1), timeout_s=3)


def resumed(tmp_path: Path, cluster_before: str, limits: Limits, timeout_s: float = 60) -> tuple[list[str], int]:
    """What a call on another cluster says about a run whose first attempt was on this one, and its result's attempt."""

    told: list[Event] = []
    with FakeCluster() as cluster:
        rundir: RunDir = run_sync(prepare(spec_at(tmp_path / "runs", limits=limits), cluster))
        rundir.claim(1, "http://127.0.0.1:1", "session", cluster_before)
        supervisor = Supervisor(rundir, cluster, listener=told.append)
        result = run_sync(asyncio.wait_for(supervisor.run(), timeout_s))
    return [event.text for event in told], result.run.attempt


@needs_namespaces
def test_each_host_that_shares_a_home_has_a_folder_of_its_own(tmp_path: Path) -> None:
    code = "from plugin_core import LocalCluster; print(LocalCluster().identity)"
    found = {LocalCluster().identity}
    for host in ("a", "b", "b"):
        command = on_host(host, [sys.executable, "-c", code])
        found.add(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    assert len(found) == 3
    container = on_host("b", [sys.executable, "-c", code], ("--uts", "--pid", "--fork"))
    assert subprocess.run(container, capture_output=True, text=True, check=True).stdout.strip() not in found


def test_a_process_is_identified_by_its_start_time() -> None:
    own = machine.started(os.getpid())
    assert own is not None
    assert machine.started(os.getpid()) == own
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        while machine.started(process.pid) is not None:
            pass
        assert machine.started(process.pid) is None, "a zombie is none"
    assert machine.started(process.pid) is None


LIVES = """
import fcntl, time
from plugin_core.clusters import local_head
from plugin_core.clusters import local_head_keeper as keeper

folder = local_head.state_dir()
stream = (folder / local_head.ALIVE).open("a")
fcntl.flock(stream, fcntl.LOCK_SH)
keeper._publish(folder / local_head.PLACE, local_head.here())
print(local_head.identity(), flush=True)
time.sleep(3600)
"""


@needs_namespaces
def test_a_container_recreated_on_the_same_volume_knows_that_the_old_head_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But only once it is; the new one has the old one's name."""
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "volume"))

    def in_a_new_one(code: str) -> str:
        command = on_host(
            "trainer", [sys.executable, "-c", f"from plugin_core.clusters import local_head as h; {code}"], CONTAINER
        )
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    with subprocess.Popen(
        on_host("trainer", [sys.executable, "-c", LIVES], CONTAINER), stdout=subprocess.PIPE, text=True
    ) as container:
        assert container.stdout is not None
        old = container.stdout.readline().strip()
        assert old.startswith("local head of trainer:")
        assert in_a_new_one(f"print(h.is_gone({old!r}), h.identity() == {old!r}, h.current())") == "False False None"
        container.kill()
    while (Path("/proc") / str(container.pid)).exists():
        pass
    assert in_a_new_one(f"print(h.is_gone({old!r}))") == "True"


@needs_namespaces
@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_keeper_is_recognised_after_the_clock_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    with subprocess.Popen(["sleep", "3600"]) as process:
        head = local_head.Head("http://127.0.0.1:1", "", "mark", process.pid, machine.started(process.pid) or 0, "", 1, 300)
        (local_head.state_dir() / "state.json").write_text(json.dumps(asdict(head)))
        code = (
            "import psutil; from plugin_core.clusters import local_head as h; print(psutil.boot_time(), h.current().mark)"
        )
        command = with_clock_set_by(step_s, tmp_path, [sys.executable, "-c", code])
        booted, mark = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        process.kill()
    assert abs(float(booted) - psutil.boot_time() - step_s) < 60, "that process saw the step"
    assert mark == "mark"
    assert local_head.current() is None


@pytest.mark.parametrize("step_s", [3600, -3600])
def test_a_heads_idle_time_is_not_measured_by_the_time_of_day(tmp_path: Path, step_s: int) -> None:
    file = tmp_path / "last_used"
    file.touch()
    used = keeper._Used(file)
    used.ago_s()
    set_to = time.time() + step_s
    os.utime(file, (set_to, set_to))
    first = used.ago_s()
    assert 0 <= first < 3000
    assert used.ago_s() > first, "it goes on from there"


def test_ports_of_a_head_are_free_and_no_outgoing_connection_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = keeper._first_ephemeral_port()
    with socket.socket() as taken:
        (port,) = keeper.free_ports(1)
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr(keeper.random, "sample", lambda among, count: [port, *range(port + 1, port + 50)])
        ports = keeper.free_ports(8)
    assert len(set(ports)) == 8
    assert port not in ports
    monkeypatch.undo()
    assert all(keeper.LOWEST_PORT <= port < first for port in keeper.free_ports(8))


def test_the_agent_that_accepts_jobs_is_given_no_port_that_another_process_could_take_first() -> None:
    """Ray's agent runs on without its HTTP server where its port is taken, so the head starts, and refuses every job."""
    assert "--dashboard-agent-listen-port=0" in keeper.ray_head_command(keeper.free_ports(8), "/tmp/ray", 4, None)


def test_a_head_whose_raylet_is_late_is_started_again_and_any_other_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "keeper.py"
    script.write_text(
        "import sys\n"
        f"starts = open({str(tmp_path / 'starts')!r}, 'a+'); starts.write('x'); starts.seek(0)\n"
        f"sys.exit('no such option' if starts.read() == 'xxx' else {'The current ' + local_head.RAYLET_IS_LATE!r})\n"
    )
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(local_head, "_keeper_command", lambda *given: [sys.executable, str(script)])
    with pytest.raises(ClusterUnreachableError, match=r"did not start; .* ends with:\nno such option"):
        local_head.ensure()
    assert (tmp_path / "starts").read_text() == "xxx"


def test_a_head_that_takes_too_long_says_how_long_and_that_its_log_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(local_head, "START_TIMEOUT_S", 0.5)
    monkeypatch.setattr(local_head, "_keeper_command", lambda *given: [sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(ClusterUnreachableError, match=r"did not start within 0\.5 s: this machine is busy.*log is empty"):
        local_head.ensure()


ORPHAN = """
import json, os, sys, time
from dataclasses import asdict
from filelock import FileLock, Timeout
from plugin_core.clusters import local_head, machine

def is_locked():
    try:
        FileLock(folder / "lock").acquire(blocking=False).lock.release()
    except Timeout:
        return True

exec(sys.argv[1])  # locks the file, as a keeper does before all else
while not is_locked():  # by `ensure`
    pass
head = local_head.Head("http://127.0.0.1:1", "", "mark", os.getpid(), machine.started(os.getpid()), "", 1, 300)
keeper._publish(folder / "state.json", asdict(head))
time.sleep(3600)
"""


def test_a_head_whose_starter_was_killed_is_waited_for_and_no_second_one_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(local_head, "_keeper_command", lambda *given: [sys.executable, "-c", "exit('a second one')"])
    locks = LIVES.replace("time.sleep(3600)", "")
    with subprocess.Popen([sys.executable, "-c", ORPHAN, locks], stdout=subprocess.PIPE) as orphan:
        assert orphan.stdout is not None
        orphan.stdout.readline()
        try:
            assert local_head.ensure().keeper_pid == orphan.pid
        finally:
            orphan.kill()


def test_a_keeper_whose_starter_was_killed_before_it_could_be_seen_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plugin_core.clusters.local_head_keeper", str(tmp_path), "300", "1", ""]
    kept = subprocess.run([*command, "1"], cwd=Path(__file__).parents[2], timeout=60, check=False)
    assert kept.returncode == 1
    assert [file.name for file in tmp_path.iterdir()] == [local_head.ALIVE]


def test_the_idle_time_goes_on_after_a_cleaner_deleted_its_file(tmp_path: Path) -> None:
    file = tmp_path / "last_used"
    file.touch()
    used = keeper._Used(file)
    before = used.ago_s()
    file.unlink()
    assert used.ago_s() > before


@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n[{",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n[{",
    b"no protocol\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n[",
])  # fmt: skip
def test_a_response_that_is_cut_off_does_not_end_the_keeper(answer: bytes, tmp_path: Path) -> None:
    """It would take the head and its live jobs with it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        head = Head(f"http://127.0.0.1:{server.getsockname()[1]}", "token", "mark", 1, 0.0, str(tmp_path), 1, 300.0)
        assert keeper._get(head, "/api/jobs/", keeper._has_live_job) is None
        thread.join(30)


def test_a_relative_home_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", "here")
    with pytest.raises(SpecError, match="RAYTRAIN_HOME: got 'here'; expected an absolute path"):
        local_head.state_dir()


def test_a_head_that_ends_just_before_it_is_stopped_is_cleared_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    head = Head("http://127.0.0.1:1", "", "mark", ended.pid, 0.0, "", 1, 300.0)
    file = local_head.state_dir() / "state.json"
    keeper._publish(file, asdict(head))
    monkeypatch.setattr(local_head, "current", lambda: head)
    assert local_head.stop()
    assert not file.exists()
