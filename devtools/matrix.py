"""`make matrix`: a smoke test at each corner of the supported versions, and the table of docs/versions.md.

    python -m devtools.matrix [WORD ...]      the corners whose names have one of the words; default: all

Each corner has an environment of its own in `.matrix`, kept for the next time, with the project's wheel in it. There, a
training loses a worker and resumes, and its checkpoint is evaluated: from Python, or through a real Prefect or Airflow.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".matrix"
SMOKE = ROOT / "tests" / "matrix"
PAGE = ROOT / "docs" / "versions.md"
SCRIPTS = {"": "core.py", "prefect": "prefect_flow.py", "apache-airflow": "airflow_run.py"}
#: Seconds for one smoke test.
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Corner:
    """`engine`: "", or a requirement such as "prefect==3.9.1"; `more`: further requirements."""

    python: str
    ray: str
    engine: str = ""
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join(filter(None, (f"python=={self.python}", f"ray=={self.ray}", self.engine, *self.more)))

    @property
    def requirements(self) -> list[str]:
        return [f"ray[default,data,train]=={self.ray}", *filter(None, [self.engine]), *self.more]

    @property
    def folder(self) -> Path:
        return KEPT / hashlib.sha256(self.name.encode()).hexdigest()[:12]


OLDEST = ("pydantic==2.9.2", "pyarrow==19.0.1", "numpy<2.3", "pandas<3")
CORNERS = (
    Corner("3.11", "2.56.1", more=OLDEST),
    Corner("3.11", "2.57.1"),
    Corner("3.12", "2.58.1"),
    Corner("3.12", "2.59.0"),
    Corner("3.11", "2.60.0"),
    Corner("3.13", "2.60.0"),
    Corner("3.11", "2.56.1", "prefect==3.4.25", ("sqlalchemy<2.1", "fastapi<0.116")),
    Corner("3.12", "2.60.0", "prefect==3.9.1", ("sqlalchemy<2.1",)),
    Corner("3.11", "2.58.1", "apache-airflow==3.1.8", ("cadwyn<6", "fastapi<0.118", "pydantic<2.13")),
    Corner("3.11", "2.60.0", "apache-airflow==3.2.2", ("cadwyn<7", "fastapi<0.137", "pydantic<2.13")),
    Corner("3.12", "2.60.0", "apache-airflow==3.3.2", ("cadwyn<8", "fastapi<0.137")),
)


#: (the client's corner, the cluster's corner)
PAIRS = (
    (Corner("3.13", "2.60.0"), Corner("3.11", "2.57.1")),
    (Corner("3.11", "2.57.1"), Corner("3.12", "2.59.0")),
)


def interpreter(version: str) -> str | None:
    """A working Python of this version; None if there is none."""
    pyenv = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *map(str, pyenv)):
        if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
            return found
    return None


def wheel() -> Path:
    """The project's wheel, freshly built."""
    target = KEPT / "wheel"
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([*pip(sys.executable), "wheel", "--no-deps", "--no-build-isolation", "-w", target, ROOT], check=True)
    (found,) = target.glob("*.whl")
    return found


def pip(python: str | Path) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "-q"]


def install(corner: Corner, python: str, built: Path) -> Path:
    """The Python of the corner's environment, with the wheel in it."""
    own, done = corner.folder / "bin" / "python", corner.folder / ".done"
    if not done.exists():
        shutil.rmtree(corner.folder, ignore_errors=True)
        subprocess.run([python, "-m", "venv", corner.folder], check=True)
        subprocess.run([*pip(own), "install", "--no-compile", *corner.requirements, str(built)], check=True)
        done.touch()
    subprocess.run([*pip(own), "install", "--no-compile", "--no-deps", "--force-reinstall", str(built)], check=True)
    return own


def smoke(python: Path, script: str, *arguments: str) -> str:
    """ "" if the smoke test passed, else the end of its output."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PREFECT", "RAY", "PYTHON"))
    }
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        environment = {
            **kept,
            "PYTHONPATH": str(SMOKE),
            "RAYTRAIN_HOME": f"{folder}/home",
            "PREFECT_HOME": f"{folder}/prefect",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        }
        command = [str(python), str(SMOKE / script), *arguments]
        try:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
            passed = done.returncode == 0 and "SMOKE PASSED" in done.stdout
            return "" if passed else done.stdout[-6000:] + done.stderr[-6000:]
        except subprocess.TimeoutExpired as exc:
            return f"it was not over after {TIMEOUT_S:g} s: {exc.stdout!r}"[-6000:]
        finally:
            subprocess.run([python.parent / "raytrain", "cluster", "stop"], env=environment, capture_output=True)


def write_tables(passed: dict[str, str]) -> None:
    """Write the corners that passed, and when, to docs/versions.md."""
    rows = [
        f"| {corner.python} | {corner.ray} | {corner.engine.replace('==', ' ') or '–'} | {', '.join(corner.more) or '–'} |"
        f" {passed[corner.name]} |"
        for corner in CORNERS
        if corner.name in passed
    ]
    mixed = [
        f"| {client.python} | {client.ray} | {cluster.python} | {cluster.ray} | {passed[pair_name(client, cluster)]} |"
        for client, cluster in PAIRS
        if pair_name(client, cluster) in passed
    ]
    heads = (
        "| Python | Ray | engine | other pins | passed on |",
        "| Python here | Ray here | Python there | Ray there | passed on |",
    )
    text = PAGE.read_text()
    for mark, head, lines in (("matrix", heads[0], rows), ("pairs", heads[1], mixed)):
        table = "\n".join([head, "|---|---|---|---|---|", *lines])
        begin, _, rest = text.partition(f"<!-- {mark} -->\n")
        text = f"{begin}<!-- {mark} -->\n{table}\n<!-- /{mark} -->{rest.partition(f'<!-- /{mark} -->')[2]}"
    PAGE.write_text(text)


def pair_name(client: Corner, cluster: Corner) -> str:
    return f"{client.name} with a cluster of {cluster.name}"


def run_corner(corner: Corner, built: Path) -> str | None:
    if (python := interpreter(corner.python)) is None:
        return None
    return smoke(install(corner, python, built), SCRIPTS[re.split("[=<>]", corner.engine)[0]])


def run_pair(client: Corner, cluster: Corner, built: Path) -> str | None:
    here, there = interpreter(client.python), interpreter(cluster.python)
    if here is None or there is None:
        return None
    return smoke(install(client, here, built), "remote.py", str(install(cluster, there, built)))


def main(words: list[str]) -> int:
    KEPT.mkdir(exist_ok=True)
    results = KEPT / "passed.json"
    passed: dict[str, str] = json.loads(results.read_text()) if results.exists() else {}
    built, failed = wheel(), 0
    tests: dict[str, Callable[[], str | None]] = {
        **{corner.name: partial(run_corner, corner, built) for corner in CORNERS},
        **{pair_name(*pair): partial(run_pair, *pair, built) for pair in PAIRS},
    }
    for name, test in tests.items():
        if words and not any(word in name for word in words):
            continue
        why = test()
        if why is None:
            print(f"not run: {name}: one of its Pythons is not here", flush=True)
            continue
        passed.pop(name, None)
        if why:
            failed += 1
            print(f"{why}\nFAILED: {name}", flush=True)
        else:
            passed[name] = f"{datetime.date.today()}"
            print(f"passed: {name}", flush=True)
        results.write_text(json.dumps(passed, indent=1))
    write_tables(passed)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
