"""`raytrain` as a user runs it: a spec file, a folder with code, and exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from devtools.chaos import Trail, wait_until
from plugin_core.clusters.local_head import Head
from plugin_core.specs.parse import parse_result
from tests.support.command_line import raytrain

CODE = """
import neighbour

def loop(config):
    import ray.train
    ray.train.report({"answer": neighbour.ANSWER + config["add"]})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "neighbour.py").write_text("ANSWER = 40\n")
    spec = {
        "framework": "python",
        "train_loop_per_worker": "mine:loop",
        "train_loop_config": {"add": 2},
        "scaling_config": {"num_workers": 2},
    }
    (tmp_path / "answer.yaml").write_text(yaml.safe_dump(spec))
    return tmp_path


@pytest.mark.parametrize("where", ["local", pytest.param("s3", marks=pytest.mark.slow)])
def test_run_status_result_logs_and_cancel(folder: Path, head: Head, s3: str, where: str) -> None:
    storage = str(folder / "runs") if where == "local" else s3
    uri = storage.replace("?", "/answer?") if "?" in storage else f"{storage}/answer"
    done = raytrain(folder, "run", "answer.yaml", "--storage", storage)
    assert done.returncode == 0, done.stderr
    result = parse_result(json.loads(done.stdout))
    assert result.metrics == {"answer": 42}
    assert "report 1: answer=42" in done.stderr
    assert "trained: 1 report; last answer=42" in done.stderr
    assert raytrain(folder, "result", uri).stdout == done.stdout
    assert "succeeded" in raytrain(folder, "status", uri).stdout
    assert "result: {" in raytrain(folder, "logs", uri).stdout
    assert raytrain(folder, "cancel", uri).stdout == "finished\n"
    # the result is there a moment before its job is over
    wait_until(lambda: "SUCCEEDED" in raytrain(folder, "cluster", "status").stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "none.yaml"), "spec file: got 'none.yaml'"),
        (("run", "bad.yaml"), "SpecError: frobnicate: unknown field, got 1; expected"),
        (("run", "answer.yaml", "--storage", "ftp://x"), "storage_path: got 'ftp://x'; expected a local path"),
        (("run", "answer.yaml", "--address", "http://127.0.0.1:9"), "cannot be reached"),
        (("run", "answer.yaml", "--address", "nonsense"), "address: got 'nonsense'; expected a URL"),
        (("result", "none"), "expected a run directory"),
        (("status", "none"), "expected a run directory"),
        (("cancel", "none"), "expected a run directory"),
    ],
)
def test_refused_input_exits_with_2_and_one_sentence(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    (folder / "bad.yaml").write_text("framework: python\ntrain_loop_per_worker: mine:loop\nfrobnicate: 1\n")
    done = raytrain(folder, *arguments, RAY_STORAGE=str(folder / "storage"))
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    begun = re.compile(r"\d\d:\d\d:\d\d train answer on the cluster at ")  # said before the cluster is asked
    assert len([line for line in done.stderr.strip().splitlines() if not begun.match(line)]) == 1


@pytest.mark.slow
def test_the_first_step_of_the_docs_runs_as_written(tmp_path: Path, head: Head) -> None:
    text = (Path(__file__).parents[2] / "docs" / "first-step.md").read_text()
    for language, name in (("python", "training.py"), ("yaml", "first.yaml")):
        block = text.split(f"```{language}\n# {name}\n")[1].split("```")[0]
        (tmp_path / name).write_text(block)
    done = raytrain(tmp_path, "run", "first.yaml")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"] == {"epoch": 4, "loss": 0.2}
    assert raytrain(tmp_path, "run", "first.yaml").stdout == done.stdout
    (history,) = re.findall(r"```python\n(from plugin_core import history.*?)```", text, re.DOTALL)
    subprocess.run([sys.executable, "-c", history], cwd=tmp_path, check=True, env={**os.environ, "MPLBACKEND": "Agg"})
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "first.yaml").write_text(block.replace("epochs: 5", "epochs: 6"))
    refused = raytrain(tmp_path, "run", "first.yaml")
    assert refused.returncode == 2
    assert "train_loop_config.epochs" in refused.stderr


@pytest.mark.slow
def test_an_interrupted_run_continues_and_the_same_command_attaches(tmp_path: Path, head: Head) -> None:
    trail = Trail(tmp_path / "trail.jsonl")
    trail.hold(5)
    spec = {
        "framework": "python",
        "train_loop_per_worker": "devtools.loops:stepping",
        "train_loop_config": {"steps": 10, "every": 1, "trail": str(trail.file)},
    }
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(spec))
    command = [str(Path(sys.executable).with_name("raytrain")), "run", "long.yaml", "--storage", "runs"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    first = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    for line in first.stderr:
        if "report 1:" in line:
            first.send_signal(signal.SIGINT)
            break
    rest = first.stderr.read()
    assert first.wait() == 130
    trail.release()
    assert "the run continues" in rest
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["reports"] == 10
    assert json.loads(again.stdout)["run"]["attempt"] == 1


def test_doctor_says_what_it_found(folder: Path, head: Head) -> None:
    done = raytrain(folder, "doctor", "--storage", str(folder), COLUMNS="200")
    assert done.returncode == 0, done.stdout
    assert "create-if-absent works" in done.stdout
    assert "4 CPUs, 0 GPUs" in done.stdout
    wrong = raytrain(folder, "doctor", "--address", "http://127.0.0.1:9", "--storage", "/proc/none", COLUMNS="200")
    assert wrong.returncode == 2
    assert "cannot be reached" in wrong.stdout
