"""Spaces, quotes, special characters of the shell and of URIs, Unicode and 200 characters in every path that a step has."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plugin_core import LocalCluster, RunConfig, ScalingConfig, TrainSpec, run
from plugin_core.runs.directory import RunDir

ODD = 'it\'s "a" $HOME `id` #1? &;|<>*()[]{}~!%20\\ ü 漢 ' + "n" * 140
#: The same on an object store, where `?` begins the options of a URI, and `#` is written %23.
ODD_KEY = ODD.replace("?", "").replace("#", "%23").replace("\\", "").replace("%20", "")
CODE = """
import neighbour

def loop(config):
    import tempfile
    from pathlib import Path
    import ray.train
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a #1.txt").write_text("x")
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"answer": neighbour.ANSWER + config["add"]}, checkpoint=checkpoint)
"""


def dag_folder(parent: Path) -> Path:
    folder = parent / ODD
    folder.mkdir(parents=True)
    (folder / "mine_of_odd.py").write_text(CODE)
    (folder / "neighbour.py").write_text("ANSWER = 40\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("where", ["local", "s3"])
def test_a_step_runs_whatever_characters_the_paths_of_its_storage_and_code_have(
    tmp_path: Path, cluster: LocalCluster, s3: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = dag_folder(tmp_path / "dags")
    monkeypatch.syspath_prepend(str(folder))
    found = importlib.util.spec_from_file_location("mine_of_odd", folder / "mine_of_odd.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "mine_of_odd", module)
    found.loader.exec_module(module)
    bucket, _, options = s3.partition("?")
    storage = str(tmp_path / "runs" / ODD) if where == "local" else f"{bucket}/{ODD_KEY}?{options}"
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=module.loop,
        train_loop_config={"add": 2},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="n" * 128, storage_path=storage),
    )
    result = run(spec, cluster)
    assert result.metrics == {"answer": 42}
    with result.checkpoint.as_directory() as kept:
        assert Path(kept, "a #1.txt").read_text() == "x"
    assert RunDir.at(result.run.uri).result() == result


@pytest.fixture
def odd_environment() -> Iterator[Path]:
    """This Python environment under an odd path. Short, because Ray's sockets are below it."""
    folder = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    name = "o'brien's \"$HOME\" `id` #1? &;|<>()[]{}~! ü 漢 venv"
    (folder / name).symlink_to(sys.prefix)
    yield folder / name / Path(sys.executable).relative_to(sys.prefix)
    shutil.rmtree(folder)


@pytest.mark.slow
def test_the_command_and_its_embedded_head_run_from_an_environment_whatever_characters_its_path_has(
    tmp_path: Path, odd_environment: Path
) -> None:
    folder = dag_folder(tmp_path)
    spec: dict[str, Any] = {
        "framework": "python",
        "train_loop_per_worker": "mine_of_odd:loop",
        "train_loop_config": {"add": 2},
        "scaling_config": {"num_workers": 1},
    }
    (folder / "my spec (1).yaml").write_text(yaml.safe_dump(spec))
    environment = {**os.environ, "RAYTRAIN_HOME": str(folder / "home"), "RAY_STORAGE": str(folder / "runs")}

    def raytrain(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(odd_environment), "-m", "plugin_core.cli", *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)

    try:
        done = raytrain("run", "my spec (1).yaml")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert result["metrics"] == {"answer": 42}
        uri = result["run"]["uri"]
        assert Path(uri).parent == folder / "runs"
        assert json.loads(raytrain("result", uri).stdout) == result
        assert "answer=42" in raytrain("logs", uri).stdout + done.stderr
        assert raytrain("cancel", uri).stdout == "finished\n"
    finally:
        assert raytrain("cluster", "stop").stdout == "stopped\n"
