"""The wheel and the sdist pass PyPI's checks and have what they should; the site builds, without a broken link."""

import json
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

import plugin_core

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def make(*words: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def test_what_pypi_gets() -> None:
    assert make("dist").count("PASSED") == 2
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    packages = {"plugin_core", "airflow_provider", "prefect_integration"}
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == packages
    assert {f"{package}/py.typed" for package in packages} <= set(names), "type checkers read the types of all three"
    with tarfile.open(sdist) as opened_too:
        files = {name.partition("/")[2] for name in opened_too.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "plugin_core/__init__.py"} <= files


def test_the_site() -> None:
    make("docs", "PICTURES=no")
    site = ROOT / "build" / "site"
    reference = (site / "reference" / "index.html").read_text()
    for name in (*plugin_core.__all__, "RayTrainOperator", "ray_task"):
        assert f">{name}</span>" in reference, name
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    pages = {entry["location"].partition("#")[0].strip("/") for entry in found}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= pages
