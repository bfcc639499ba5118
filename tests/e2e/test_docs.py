"""The pages of documentation whose Python is a program: run as written, from top to bottom."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("evaluate", "tune", "batch-inference", "retraining")
#: what the last lines print
ENDS = {
    "evaluate": r"True \{\} 0\.\d+",
    "tune": r"\{'train_loop_config': \{.*'finished': \d",
    "batch-inference": r"360 .*/attempt-001\n\{'mean\(x\)': 2\.0",
    "retraining": r"(promoted|skipped) .*\nskipped .*skip_unchanged is set\n\d",
}


def program(page: str) -> str:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    return "\n".join(re.findall(r"^```python\n(.+?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.mark.slow
@pytest.mark.usefixtures("head")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_written(page: str, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{program(page)}")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=550)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(ENDS[page], done.stdout, re.DOTALL), done.stdout[-2000:]


@pytest.mark.parametrize("page", PAGES)
def test_a_pages_python_is_python(page: str) -> None:
    compile(program(page), f"{page}.md", "exec")
