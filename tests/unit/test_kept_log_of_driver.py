"""A driver as a process of its own keeps its job's log, however it ends."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from plugin_core.driver.log_keeper import LogKeeper
from plugin_core.runs.directory import RunDir
from plugin_core.runs.kept_log import DRIVER, log_folder
from tests.support.kept_logs import everything, folder_of


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    return RunDir.at(str(tmp_path / "run"))


DRIVER_PROCESS = """
    import os, signal, subprocess, sys, time
    from plugin_core.driver import attempt as driver
    from plugin_core.driver import log_keeper

    def step(context):
        print("printed by the step", flush=True)
        os.write(1, b"written below Python\\n")
        subprocess.run(["echo", "printed by a child"])
        WHAT
        print("buffered by Python, and the last")

    driver.run_step = step
    driver._connect_job = lambda runtime_env: None
    driver.check_shared = lambda rundir: None
    driver.leave(driver.main(*sys.argv[1:2], 1, *sys.argv[2:]))
"""


def driver_process(tmp_path: Path, what: str) -> tuple[int, RunDir]:
    from plugin_core.runs.code import digests
    from tests.support.fake_steps import spec_at

    rundir = RunDir.of(spec := spec_at(tmp_path))
    rundir.write_spec(spec)
    receipt = rundir.claim(1, "address", "incarnation")
    assert receipt is not None
    code = textwrap.dedent(DRIVER_PROCESS).replace("WHAT", what)
    command = [sys.executable, "-c", code, rundir.uri, receipt.nonce, digests(rundir)[0]]
    with (tmp_path / "job-driver.log").open("w") as file:
        file.write("what the job's supervisor wrote\n")
        file.flush()
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=300, check=False)
    return done.returncode, rundir


def test_a_driver_that_fails_keeps_all_that_its_job_printed(tmp_path: Path) -> None:
    code, rundir = driver_process(tmp_path, "raise ValueError('no such column')")
    assert code == 10
    kept = everything(rundir)
    assert kept == (tmp_path / "job-driver.log").read_text()
    assert kept.startswith("what the job's supervisor wrote\n")
    for line in ("printed by the step", "written below Python", "printed by a child", "no such column"):
        assert line in kept


def test_a_driver_that_is_terminated_keeps_all_that_its_job_printed(tmp_path: Path) -> None:
    code, rundir = driver_process(tmp_path, "os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)")
    assert code != 0
    kept = everything(rundir)
    assert "printed by a child" in kept
    assert "stopping: the driver was told to stop (SIGTERM)" in kept


def test_what_is_printed_while_the_driver_exits_is_kept(tmp_path: Path) -> None:
    """So does Ray, when it passes on what the workers said last."""
    what = "import atexit; atexit.register(print, 'said at the exit'); raise ValueError"
    _, rundir = driver_process(tmp_path, what)
    assert everything(rundir).splitlines()[-1] == "said at the exit"


def test_a_driver_whose_output_goes_to_a_pipe_keeps_nothing(rundir: RunDir) -> None:
    code = "from plugin_core.driver import log_keeper; print(log_keeper._file_behind(1), log_keeper._file_behind(99))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == " \n"
    LogKeeper(log_folder(rundir, 1, DRIVER), []).close()
    assert not os.path.exists(folder_of(rundir).path)
