"""Code as users keep it, in packages and archives, on a real Ray head."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin_core import LocalCluster, RunConfig, ScalingConfig, TrainSpec, run
from tests.support.users_modules import PACKAGE, pack

pytestmark = pytest.mark.slow


@pytest.fixture(params=["folder", "zip"])
def packages(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's, or a zip archive like Airflow's packaged DAGs, on this process's path alone."""
    place = tmp_path / ("code.zip" if request.param == "zip" else "code")
    if request.param == "zip":
        pack(place, PACKAGE)
    else:
        for name, source in PACKAGE.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(source)
    monkeypatch.syspath_prepend(place)
    yield place
    for name in [name for name in sys.modules if name.partition(".")[0] == "vision_team"]:
        del sys.modules[name]


@pytest.mark.parametrize("given", ["by name", "by value"])
def test_a_loop_of_a_package_that_imports_relatively(
    packages: Path, tmp_path: Path, cluster: LocalCluster, given: str
) -> None:
    loop = "vision_team.models.train:loop"
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=loop if given == "by name" else importlib.import_module("vision_team.models.train").loop,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="run", storage_path=str(tmp_path / "runs")),
    )
    assert run(spec, cluster).metrics == {"width": 7, "name": "vision"}


#: Of this package, only a part is imported by name, so only that part is found and sent.
BY_COMPUTED_NAME = {
    "plugged/__init__.py": "",
    "plugged/base.py": "WIDTH = 1\n",
    "plugged/models/__init__.py": "",
    "plugged/models/wide.py": "from plugged.base import WIDTH as BASE\n\nWIDTH = BASE + 6\n",
    "plugged/models/name.txt": "wide",
    "plugged_loop.py": """
import importlib
from importlib import resources

import ray.train

import plugged.models
from plugged.base import WIDTH


def loop(config):
    found = importlib.import_module("plugged.models." + config["name"])
    name = resources.files(plugged.models).joinpath("name.txt").read_text()
    ray.train.report({"width": found.WIDTH, "name": name})
""",
}


@pytest.mark.parametrize("given", ["by name", "by value"])
@pytest.mark.parametrize("field", ["py_modules", "working_dir"])
def test_what_the_runtime_env_brings_is_not_hidden_by_the_part_that_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: LocalCluster, field: str, given: str
) -> None:
    place = tmp_path / "code"
    for name, source in BY_COMPUTED_NAME.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(source)
    monkeypatch.syspath_prepend(place)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("plugged", "plugged_loop")]:
        monkeypatch.delitem(sys.modules, name)
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker="plugged_loop:loop" if given == "by name" else importlib.import_module("plugged_loop").loop,
        train_loop_config={"name": "wide"},
        scaling_config=ScalingConfig(num_workers=1),
        runtime_env={"py_modules": [str(place / "plugged")]} if field == "py_modules" else {"working_dir": str(place)},
        run_config=RunConfig(name="run", storage_path=str(tmp_path / "runs")),
    )
    assert run(spec, cluster).metrics == {"width": 7, "name": "wide"}
