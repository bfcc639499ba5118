"""What `raytrain` shows in a terminal, drawn from real runs. Only the names of this machine's folders are shortened."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import yaml
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from devtools.chaos import is_worker, kill
from devtools.servers import environment
from plugin_core.clusters.local_head import Head

ROOT = Path(__file__).parents[2]
WIDTH = 132
BYTES = 60_000
STEPS = "example_flows.digits_steps"

#: Without the fonts that rich would load from the internet.
SVG = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def data(part: str) -> dict[str, object]:
    return {"function": f"{STEPS}:dataset", "kwargs": {"part": part}}


def training(epochs: int) -> dict[str, object]:
    return {
        "train_loop_per_worker": f"{STEPS}:train_loop",
        "train_loop_config": {"epochs": epochs, "lr": 0.003, "batch_size": 32},
        "scaling_config": {"num_workers": 2},
        "datasets": {"train": data("train")},
        "run_config": {"checkpoint_config": {"num_to_keep": 2}},
    }


def evaluation(folder: Path, least: float) -> dict[str, object]:
    return {
        "kind": "evaluate",
        "predictor": f"{STEPS}:Predictor",
        "task": "classification",
        "checkpoint": str(folder / "ray_results" / "digits"),
        "dataset": data("test"),
        "thresholds": {"accuracy": {"min": least}},
        "plots": False,
    }


class Terminal:
    """Types commands in `folder`, and keeps what they write to their terminal."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._lines: list[Text] = []

    def type(self, command: str, each: Callable[[str], None] = lambda line: None) -> None:
        """Run a command of `raytrain`. `each` gets every line. As in a shell, output sent to a file is not shown."""
        shown, _, file = command.partition(" > ")
        self._lines.append(Text(f"$ {command}", style="bold"))
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "plugin_core.cli", *shown.split()[1:]],
            stdin=theirs,
            stdout=subprocess.DEVNULL if file else theirs,
            stderr=theirs,
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": str(WIDTH)},
        )
        os.close(theirs)
        with open(ours, encoding="utf-8", errors="replace", newline="\n") as stream:
            try:
                for line in stream:
                    text = printed(line)
                    if text is not None:
                        self._lines.append(Text.from_ansi(self._shortened(text)))
                        each(text)
            except OSError:  # a terminal raises it once its last process has ended
                pass
        if code := process.wait():
            raise RuntimeError(f"`{command}` ended with {code}: {self._lines[-1].plain}")

    def _shortened(self, text: str) -> str:
        folders = {str(self._folder): "~", sys.prefix: "~/.venv", str(ROOT): "~/ray-train-workflows"}
        for folder, short in folders.items():
            text = text.replace(folder, short)
        return text

    def draw(self, file: Path, title: str) -> None:
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
        for line in self._lines:
            console.print(line, highlight=False)
        self._lines = []
        drawn = console.export_svg(title=title, code_format=SVG, unique_id=file.stem)
        if len(drawn.encode()) > BYTES:
            raise ValueError(f"{file.name}: got {len(drawn.encode())} bytes; expected at most {BYTES}")
        file.write_text(drawn)


def printed(line: str) -> str | None:
    """What remains of a line in a terminal; None for the progress bar's, which is erased before each line."""
    text = re.split(r"\x1b\[2K", line)[-1].rstrip("\r\n")
    text = re.sub(r"\x1b\[\?25[hl]", "", text)
    return None if "━" in text or not text.strip() else text


def workers(head: Head) -> list[int]:
    """The processes of the training that runs on `head`."""
    return sorted(process.pid for process in head.processes() if is_worker(process.pid))


def killer(pids: Callable[[], list[int]]) -> Callable[[str], None]:
    """Kills a worker, once, when the first checkpoint is kept."""
    killed: list[int] = []

    def each(line: str) -> None:
        if not killed and " is kept" in line:
            killed.append(pids()[-1])
            kill(killed[0])

    return each


def draw(images: Path, folder: Path, head: Head) -> None:
    """Draw three pictures of runs in `folder` on `head` into `images`."""
    for file, spec in (("digits", training(30)), ("long", training(40)), ("judge", evaluation(folder, 0.95))):
        (folder / f"{file}.yaml").write_text(yaml.safe_dump(spec))
    with environment({"RAY_STORAGE": str(folder / "ray_results")}):
        terminal = Terminal(folder)
        terminal.type("raytrain run digits.yaml > result.json")
        terminal.draw(images / "run-healthy.svg", "a healthy run")
        terminal.type("raytrain run long.yaml > result.json", killer(lambda: workers(head)))
        terminal.draw(images / "run-killed.svg", "a worker is killed with SIGKILL")
        terminal.type("raytrain run judge.yaml > result.json")
        terminal.type("raytrain ls")
        terminal.draw(images / "run-outcome.svg", "an evaluation, and the runs there are")
