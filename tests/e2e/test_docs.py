"""The pages of documentation whose Python is a program: run as written, from top to bottom."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *("evaluate", "tune", "batch-inference", "retraining", "storage", "data", "rows", "clusters", "validation"),
    *("checkpoint-tiers", "ray-jobs", "differs-from-ray"),
)
#: what the last lines print
ENDS = {
    "evaluate": r"True \{\} 0\.\d+",
    "tune": r"\{'train_loop_config': \{.*'finished': \d",
    "batch-inference": r"360 .*/attempt-001\n\{'mean\(x\)': 2\.0",
    "storage": r"epoch 2\n.*checkpoint_a001.*loss",
    "data": r"[0-9a-f]{16} .*/runs/customers/artifacts\n\d+\.\d.*\n0 +1 +\d+ +60\n1 +2 +\d+ +60\n",
    "rows": r"2 0 7\n\{'epoch': 1\}",
    "clusters": r"https://ray\.example:8265\ntrain-[0-9a-f]{10}\n.*running at http://127\.0\.0\.1:\d+.*stopped",
    "validation": r"/docs-runs/validated/checkpoint_a001_00000[34] 0\.19999.*\n3\n",
    "ray-jobs": r"10 \{'words': 10\}\n3 True\n.*\"kind\": \"ray_job\"",
    "differs-from-ray": r"\{'epoch': 4, 'loss': \d",
    "checkpoint-tiers": r"8 .*/docs-runs/tiers/checkpoint_a001_000012\n",
    "retraining": r"(promoted|skipped) .*\nskipped .*skip_unchanged is set\n\d",
}


def program(page: str, language: str = "python") -> str:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return "\n".join(re.findall(rf"^```{language}\n(.+?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.mark.slow
@pytest.mark.usefixtures("head")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_docs_runs_as_written(page: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{program(page)}")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if page == "clusters":
        environment["RAYTRAIN_HOME"] = str(tmp_path / "home")  # it stops the head that it starts, not that of the tests
    commands = ["bash", "-e", "-c", program(page, "bash")]
    typed = subprocess.run(commands, capture_output=True, text=True, cwd=tmp_path, timeout=600, env=environment)
    assert typed.returncode == 0, typed.stderr[-3000:]
    printed = done.stdout + typed.stdout
    assert re.search(ENDS[page], printed, re.DOTALL), printed[-2000:]


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_python_is_python(page: str) -> None:
    compile(program(page), f"{page}.md", "exec")
