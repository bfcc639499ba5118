"""Files that go along with a submit: where the job's variables name them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugin_core import RayCluster, env_files, run
from plugin_core.errors import SpecError
from plugin_core.follow import Event
from plugin_core.supervisor import JOB_VARIABLES
from plugin_core.testing import FakeCluster
from tests.unit.fake_steps import spec_at

PROGRAM = """
import os
from plugin_core import env_files
env_files.write()
path = os.environ["DATABRICKS_CONFIG_FILE"]
print(path, oct(os.stat(path).st_mode & 0o777), open(path).read())
"""


def test_the_variable_names_a_file_of_the_owners_alone_that_goes_with_the_process(tmp_path: Path) -> None:
    variables = env_files.as_variables({"DATABRICKS_CONFIG_FILE": "token = hunter2"})
    environment = {**os.environ, **variables, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path, mode, content = done.stdout.split(" ", 2)
    assert (Path(path).parent, mode) == (tmp_path, "0o600")
    assert content.startswith("token = hunter2")
    assert list(tmp_path.iterdir()) == []


def test_the_clusters_variables_go_with_the_submit_and_are_kept_nowhere(tmp_path: Path) -> None:
    spec = spec_at(tmp_path).model_copy(update={"runtime_env": {"env_vars": {"A": "of the spec"}}})
    secrets = {"A": "of the cluster", "WANDB_API_KEY": "hunter2"}
    with FakeCluster(env_vars=secrets, env_files={"DATABRICKS_CONFIG_FILE": "token = hunter2"}) as cluster:
        told: list[Event] = []
        run(spec, cluster, told.append)
    file = {"RAYTRAIN_FILE_DATABRICKS_CONFIG_FILE": "token = hunter2"}
    own = {"A": "of the spec", "WANDB_API_KEY": "hunter2"}
    assert cluster.runtime_envs == [{"env_vars": {**JOB_VARIABLES, **own, **file}}]
    assert not any("hunter2" in event.text for event in told)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"hunter2" in path.read_bytes() for path in kept)
    assert "hunter2" not in repr(RayCluster("http://x", env_vars={"K": "hunter2"}, env_files={"F": "hunter2"}))


def test_who_wants_the_bars_of_ray_data_has_them(tmp_path: Path) -> None:
    shown = {"env_vars": {"RAY_DATA_DISABLE_PROGRESS_BARS": "0"}}
    with FakeCluster() as cluster:
        run(spec_at(tmp_path).model_copy(update={"runtime_env": shown}), cluster)
    assert cluster.runtime_envs == [shown]


def test_a_file_that_is_too_large_to_go_along_is_refused_before_anything_is_submitted(tmp_path: Path) -> None:
    with FakeCluster(env_files={"CA": "x" * 65_537}) as cluster:
        with pytest.raises(SpecError, match=r"env_files.CA: given 65537 characters; accepted are at most 65536"):
            run(spec_at(tmp_path), cluster)
        assert cluster.submits == 0
