"""A container dies with everything in it and is recreated on the same volume."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.chaos import Trail, spec_at, wait_until
from plugin_core.runs.directory import RunDir
from tests.support.namespaces import CONTAINER, needs_namespaces, on_host

CODE = """
import sys
from plugin_core import LocalCluster, run
from pathlib import Path
from devtools.chaos import spec_at
from plugin_core.clusters import local_head

spec = spec_at(sys.argv[1], Path(sys.argv[2]), loop={"steps": 12}, limits=eval(sys.argv[3]))
try:
    result = run(spec, LocalCluster(num_cpus=3), lambda event: print(event.text, flush=True))
    print("attempt", result.run.attempt, result.metrics["total"])
finally:
    local_head.stop()
"""


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize("home", ["on the volume", "in the container"])
def test_a_container_recreated_on_the_same_volume_continues_its_run(tmp_path: Path, trail: Trail, home: str) -> None:
    """Where the old head's folder is on the volume too, its death is proven; else the test waits until it is silent."""
    limits = {} if home == "on the volume" else {"unreachable_timeout_s": 8.0}

    def container(number: int) -> subprocess.Popen[str]:
        place = tmp_path / "volume" / "home" if home == "on the volume" else tmp_path / f"home-{number}"
        code = [sys.executable, "-c", CODE, str(tmp_path / "volume"), str(trail.file), repr(limits)]
        command = on_host(f"container{number}", code, CONTAINER)
        log = (tmp_path / f"{number}.log").open("w")
        return subprocess.Popen(command, env={**os.environ, "RAYTRAIN_HOME": str(place)}, stdout=log, stderr=log)

    trail.hold(5)
    first = container(1)
    try:
        wait_until(lambda: any(step >= 5 for step in trail.steps()) or first.poll() is not None)
        assert first.poll() is None, (tmp_path / "1.log").read_text()[-2000:]
    finally:
        first.kill()
        first.wait()
    trail.release()
    rundir = RunDir.of(spec_at(tmp_path / "volume", trail.file))
    assert rundir.end(1) is None
    shutil.rmtree(tmp_path / "home-1", ignore_errors=True)  # what was in the container is gone with it
    second = container(2)
    wait_until(lambda: second.poll() is not None)
    told = (tmp_path / "2.log").read_text()
    assert f"attempt 2 {sum(range(12))}" in told, told
    trail.check(12, kills=1)
    if home == "on the volume":
        assert "attempt 1 was lost: the cluster that ran it is gone" in told
    else:
        assert "only container1 can query it, so the next attempt starts after 8 s of silent heartbeat" in told
