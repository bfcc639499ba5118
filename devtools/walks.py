"""`make walks`: follow a newcomer's first page to the letter from an empty environment, and time it.

    python -m devtools.walks [WORD ...]      the personas whose names have one of the words; default: all

Programs and files are the pages' own code blocks. `pip` uses its cache, so the first walk on a machine takes longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from devtools.chaos import wait_until
from devtools.servers import wait_for_http
from plugin_core.clusters.local_head_keeper import free_ports

ROOT = Path(__file__).parents[1]


class Walk:
    """A newcomer's machine: an empty home, no packages, and a checkout of this repository."""

    def __init__(self, home: Path):
        self.home = home
        kept = {name: value for name, value in os.environ.items() if name == "LANG" or name.startswith("PIP_")}
        pip = {"PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip")}
        if (settings := Path.home() / ".config" / "pip" / "pip.conf").exists():
            pip["PIP_CONFIG_FILE"] = str(settings)
        # tables in a terminal of 80 columns cut words short
        kept |= {"HOME": str(home), "PATH": f"{home}/env/bin:{os.environ['PATH']}", "COLUMNS": "200"}
        self.environment = {**pip, **kept}
        self._background: list[subprocess.Popen[bytes]] = []

    def install(self, extras: str) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(self.home / "env")], check=True)
        what = f"{ROOT}[{extras}]" if extras else str(ROOT)
        self.shell(f"pip install -q --disable-pip-version-check -c {ROOT}/constraints.txt '{what}'")

    def save(self, name: str, text: str) -> None:
        (self.home / name).parent.mkdir(parents=True, exist_ok=True)
        (self.home / name).write_text(text)

    def shell(self, command: str) -> str:
        done = self._typed(command)
        if done.returncode != 0:
            raise RuntimeError(f"`{command}` failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done.stdout

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Run it in another terminal."""
        log = (self.home / f"terminal-{len(self._background)}.log").open("wb")
        words = ["bash", "-c", f"exec {command}"]
        process = subprocess.Popen(
            words, cwd=self.home, env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        self._background.append(process)
        return process

    def until(self, command: str, says: str) -> None:
        """Type the command again and again until it says that."""
        wait_until(lambda: says in self._typed(command).stdout)

    def _typed(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command], cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=900
        )

    def end(self) -> None:
        for process in self._background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self.shell("raytrain cluster stop")


def block(page: str, language: str, having: str) -> str:
    """The page's code block that contains these words."""
    blocks: list[str] = re.findall(
        rf"^```{language}\n(.+?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE
    )
    return next(text for text in blocks if having in text)


def script(walk: Walk) -> None:
    walk.save("training.py", block("first-step.md", "python", "# training.py"))
    walk.save("first.yaml", block("first-step.md", "yaml", "# first.yaml"))
    assert json.loads(walk.shell("raytrain run first.yaml"))["metrics"]["epoch"] == 4


def ray_train(walk: Walk) -> None:
    walk.save("train.py", block("differs-from-ray.md", "python", "def train_loop"))
    assert "{'epoch': 4" in walk.shell("python train.py")


def prefect(walk: Walk) -> None:
    (port,) = free_ports(1)
    walk.environment |= {"PREFECT_SERVER_API_PORT": str(port), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    walk.save("retrain.py", block("prefect.md", "python", 'retrain.serve("nightly"'))
    wait_for_http(f"http://127.0.0.1:{port}/api/health", walk.start("prefect server start"))
    walk.start("python retrain.py")
    walk.until("prefect deployment ls", "retrain/nightly")
    walk.shell("prefect deployment run retrain/nightly")
    walk.until("prefect flow-run ls", "COMPLETED")


def airflow(walk: Walk) -> None:
    (port,) = free_ports(1)
    url = f"http://localhost:{port}"
    home = {"AIRFLOW_HOME": f"{walk.home}/airflow", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    walk.environment |= {**home, "AIRFLOW__API__PORT": str(port), "AIRFLOW__API__BASE_URL": url}
    walk.save("airflow/dags/smallest.py", block("airflow.md", "python", "def smallest"))
    wait_for_http(f"{url}/api/v2/version", walk.start("airflow standalone"))
    walk.until("airflow dags list", "smallest")
    walk.shell("airflow dags unpause smallest && airflow dags trigger smallest")
    walk.until("airflow dags list-runs smallest", "success")


#: Persona → its page, what is installed, and what its first page says.
WALKS: dict[str, tuple[str, str, Callable[[Walk], None]]] = {
    "an ML engineer with a script": ("first-step.md", "", script),
    "a Ray Train user": ("differs-from-ray.md", "torch", ray_train),
    "a Prefect team": ("prefect.md", "prefect,torch", prefect),
    "an Airflow team": ("airflow.md", "airflow,torch", airflow),
}


def main(words: list[str]) -> None:
    print("| who | page | installed after | first result after |\n|---|---|---|---|")
    for who, (page, extras, go) in WALKS.items():
        if words and not any(word in who for word in words):
            continue
        # a short path, since Ray's sockets are below it
        with tempfile.TemporaryDirectory(prefix="w-") as folder:
            walk, began = Walk(Path(folder)), time.monotonic()
            try:
                walk.install(extras)
                installed = time.monotonic() - began
                go(walk)
                print(f"| {who} | {page} | {installed:.0f} s | {time.monotonic() - began:.0f} s |", flush=True)
            finally:
                walk.end()


if __name__ == "__main__":
    # a process that a shell started in the background ignores Ctrl-C, and so would the servers that a walk interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main(sys.argv[1:])
