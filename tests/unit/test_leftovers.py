import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from devtools.servers import alive
from tests.support.leftovers import MARK, end_leftovers

#: Starts a child, then writes a title over its own environment, as Ray's agents do.
AGENT = """
import subprocess, sys, time
import setproctitle
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
setproctitle.setproctitle("ray::Agent" + " " * 10_000)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def agent() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT], env=os.environ | {MARK: "suite 1"}, start_new_session=True, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        end_leftovers("suite 1")
        process.communicate()


def test_what_a_suite_left_behind_ends_and_nothing_of_another_suite(agent: int) -> None:
    with subprocess.Popen(["sleep", "60"], env=os.environ | {MARK: "suite 2"}, start_new_session=True) as own:
        assert end_leftovers("suite 2") == ["sleep 60"]
        assert not alive(own.pid)
    assert alive(agent)


def test_a_process_that_overwrote_its_environment_ends_with_its_session(agent: int) -> None:
    assert len(end_leftovers("suite 1")) == 2
    assert not alive(agent)
