"""The fork server starts a process as a new Python would, tells how it ended, and ends it with who asked for it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from devtools.chaos import wait_until
from plugin_core.ray_internals import fork_server, forked
from plugin_core.ray_internals.forked import SOCKET, request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there the embedded head has a fork server")

#: The server without Ray and torch, whose import takes seconds.
SERVER = """
import sys
from plugin_core.ray_internals import fork_server
fork_server.MODULES = ("numpy", "no_such_module")
fork_server.run(fork_server.main(sys.argv[1]))
"""
TELLS = """
import json, os, sys
import numpy
told = {"argv": sys.argv, "folder": os.getcwd(), "A": os.environ.get("A"), "RAYTRAIN_B": os.environ.get("RAYTRAIN_B")}
told |= {"path": sys.path[:2], "drawn": numpy.random.rand(), "ours": [m for m in sys.modules if "plugin_core" in m]}
print(json.dumps({**told, "main": __name__, "parent": os.getppid()}))
sys.stderr.write("an error\\n")
sys.exit(3)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "A": "the server's"}
    started = subprocess.Popen([sys.executable, str(script), str(tmp_path / "socket"), fork_server.ROOM], env=env)
    wait_until((tmp_path / "socket").exists)
    yield started
    started.kill()
    started.wait(30)


def ask(folder: Path, *arguments: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """What the raylet does, with a program in place of Ray's `default_worker.py`."""
    context = f"--serialized-runtime-env-context={json.dumps({'env_vars': variables or {}})}"
    command = [sys.executable, forked.__file__, *arguments, "--language=PYTHON", context]
    env = {**os.environ, SOCKET: str(folder / "socket"), "A": "the asker's"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, cwd=folder, text=True, stdout=pipe, stderr=pipe)


def program(folder: Path, text: str) -> str:
    place = folder / "program.py"
    place.write_text(text)
    return str(place)


def test_a_worker_is_what_a_new_process_would_be(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    tells = program(tmp_path, TELLS)
    given = {"RAYTRAIN_B": "${A}!", "PYTHONPATH": f"/shipped:{tmp_path}"}
    asked = [ask(tmp_path, tells, "--x=1", "y z", variables=given) for _ in range(2)]
    told = []
    for each in asked:
        out, err = each.communicate(timeout=60)
        assert (each.returncode, err) == (3, "an error\n")
        told.append(json.loads(out))
    first, second = told
    assert first["argv"] == [tells, "--x=1", "y z"]
    assert (first["folder"], first["A"], first["RAYTRAIN_B"]) == (str(tmp_path), "the asker's", "the asker's!")
    assert first["path"] == [str(tmp_path), "/shipped"]
    assert first["main"] == "__main__"
    assert first["ours"] == []
    assert first["parent"] == server.pid
    assert first["drawn"] != second["drawn"]


def test_an_asker_ends_as_its_worker_did(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    with ask(tmp_path, program(tmp_path, "import os; os.kill(os.getpid(), 9)")) as asked:
        assert asked.wait(60) == -signal.SIGKILL
    assert psutil.Process(server.pid).children() == []


def sleeping(folder: Path) -> tuple[subprocess.Popen[str], psutil.Process]:
    asked = ask(folder, program(folder, "import os, time; print(os.getpid(), flush=True); time.sleep(600)"))
    assert asked.stdout is not None
    return asked, psutil.Process(int(asked.stdout.readline()))


def test_a_worker_ends_with_its_asker_and_others_go_on(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    (asked, worker), (other, others) = sleeping(tmp_path), sleeping(tmp_path)
    with asked, other:
        asked.kill()
        wait_until(lambda: not worker.is_running())
        assert psutil.Process(server.pid).children() == [others]
        others.kill()
        assert other.wait(60) == -signal.SIGKILL


def test_a_worker_and_its_asker_that_end_at_once_do_not_end_the_server(
    tmp_path: Path, server: subprocess.Popen[bytes]
) -> None:
    (asked, worker), (other, others) = sleeping(tmp_path), sleeping(tmp_path)
    with asked, other:
        with socket.socket(socket.AF_UNIX) as slow:  # while it waits for this request, it hears of nothing else
            files = psutil.Process(server.pid).num_fds()
            slow.connect(str(tmp_path / "socket"))
            wait_until(lambda: psutil.Process(server.pid).num_fds() > files)
            worker.kill()
            wait_until(lambda: worker.status() == psutil.STATUS_ZOMBIE)
            asked.kill()
            asked.wait(60)
        wait_until(lambda: not worker.is_running())
        others.kill()
        assert other.wait(60) == -signal.SIGKILL
    assert server.poll() is None


def test_a_killed_server_takes_no_worker_with_it_and_its_asker_waits_for_it(
    tmp_path: Path, server: subprocess.Popen[bytes]
) -> None:
    """Ray would start a second process with the same id if the asker became Ray's starter now."""
    asked, worker = sleeping(tmp_path)
    with asked:
        server.kill()
        server.wait(30)
        with pytest.raises(subprocess.TimeoutExpired):
            asked.wait(3 * forked.LOOK_S)
        assert worker.is_running()
        worker.kill()
        assert asked.wait(60) == 1


def ask_for_driver(folder: Path, text: str, runtime_env: dict[str, Any] | None = None) -> subprocess.Popen[str]:
    (folder / "some_driver.py").write_text(text)
    job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": runtime_env or {}, "metadata": {}})}
    env = {**os.environ, SOCKET: str(folder / "socket"), "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1", **job}
    command = [sys.executable, forked.__file__, "-m", "some_driver", "s3://a b", "1"]
    return subprocess.Popen(command, env=env, cwd=folder, text=True, stdout=subprocess.PIPE)


DRIVER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print(os.getpid(), os.getppid(), *sys.argv[1:], __name__)
for _ in range(6000):  # a signal just before one long sleep would be handled behind it
    time.sleep(0.1)
"""


def started(asked: subprocess.Popen[str]) -> list[str]:
    assert asked.stdout is not None
    return asked.stdout.readline().split()


def test_a_driver_is_asked_to_end_and_ends_as_it_likes(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    with ask_for_driver(tmp_path, DRIVER) as asked:
        pid, parent, *told = started(asked)
        assert (int(parent), told) == (server.pid, ["s3://a", "b", "1", "__main__"])
        title = " ".join(psutil.Process(int(pid)).cmdline()).strip()
        assert title == f"{sys.executable} -m some_driver s3://a b 1"
        asked.terminate()
        assert asked.wait(60) == 7


@pytest.mark.parametrize("killed", ["its asker", "the server"])
def test_a_driver_does_not_outlive_who_asked_for_it_nor_the_server(
    tmp_path: Path, server: subprocess.Popen[bytes], killed: str
) -> None:
    with ask_for_driver(tmp_path, DRIVER) as asked:
        driver = psutil.Process(int(started(asked)[0]))
        os.kill(server.pid if killed == "the server" else asked.pid, signal.SIGKILL)
        wait_until(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE)
        assert asked.wait(60) in (-signal.SIGKILL, 1)


@pytest.mark.parametrize(
    "own", [{"env_vars": {"OMP_NUM_THREADS": "2"}}, {"pip": ["x"]}, {"env_vars": {"RAYTRAIN_HANDOVER": "x"}}]
)
def test_a_driver_whose_environment_may_have_changed_the_imports_is_a_new_process(
    tmp_path: Path, server: subprocess.Popen[bytes], own: dict[str, Any]
) -> None:
    with ask_for_driver(tmp_path, DRIVER, own) as asked:
        pid, parent, *_ = started(asked)
        assert (int(pid), int(parent)) == (asked.pid, os.getpid())
        asked.terminate()
        assert asked.wait(60) == 7


def test_without_a_server_it_becomes_rays_own_starter(tmp_path: Path) -> None:
    out, _ = ask(tmp_path, "--help").communicate(timeout=120)
    assert "--serialized-runtime-env-context" in out


@pytest.mark.parametrize(
    "given",
    [
        ["--language=JAVA"],
        ['--serialized-runtime-env-context={"env_vars": {"TORCH_LOGS": "+dynamo"}}'],
        ['--serialized-runtime-env-context={"env_vars": {"OMP_NUM_THREADS": "4"}}'],
        ['--serialized-runtime-env-context={"env_vars": {"LD_PRELOAD": "x.so"}}'],
        ['--serialized-runtime-env-context={"py_executable": "/another/python"}'],
        ['--serialized-runtime-env-context={"command_prefix": ["cd x &&"]}'],
        ['--serialized-runtime-env-context={"override_worker_entrypoint": "x.py"}'],
        ['--serialized-runtime-env-context={"a_field_of_a_later_ray": 1}'],
    ],
)
def test_what_would_have_changed_the_imports_is_left_to_ray(given: list[str]) -> None:
    assert request(["/ray/default_worker.py", "--language=PYTHON", *given]) is None


def test_a_request_has_the_workers_arguments_alone() -> None:
    context = {"env_vars": {"RAYTRAIN_X": "1"}, "py_executable": sys.executable, "command_prefix": [], "java_jars": []}
    asked = request(
        [
            "-s",
            "/ray/default_worker.py",
            "--a=b",
            f"--serialized-runtime-env-context={json.dumps(context)}",
            "--language=PYTHON",
        ]
    )
    assert asked is not None
    assert (asked["arguments"], asked["variables"]) == (["/ray/default_worker.py", "--a=b"], {"RAYTRAIN_X": "1"})
