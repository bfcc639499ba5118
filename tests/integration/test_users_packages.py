"""Code as users keep it, in packages and archives, on a real Ray head."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin_core import LocalCluster, RunConfig, ScalingConfig, TrainSpec, run
from tests.support.users_modules import PACKAGE, pack


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


@pytest.mark.parametrize("given", ["by name", pytest.param("by value", marks=pytest.mark.slow)])
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
