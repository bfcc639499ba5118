"""`raytrain data` on datasets that Ray Data must read, with a Ray of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

pytestmark = pytest.mark.slow

MODULE = """
def numbers(count):
    import numpy as np
    import ray.data
    print("the user's own words")
    return ray.data.from_items([{"id": n, "pixels": np.zeros((4, 4)), "token": "hunter2"} for n in range(count)])
"""


def raytrain_data(folder: Path, datasets: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "my_data.py").write_text(MODULE)
    step = {"framework": "python", "train_loop_per_worker": "a:b", "scaling_config": {"num_workers": 2}}
    (folder / "step.json").write_text(json.dumps({**step, "datasets": datasets}))
    command = [sys.executable, "-m", "plugin_core.cli", "data", "step.json", "--count", "--json"]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300, env=environment)


def test_functions_and_other_formats_are_read_by_ray_data(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\nthree\n")
    pyarrow.parquet.write_table(pa.table({"x": list(range(400))}), tmp_path / "x.parquet")
    datasets = {
        "made": {"function": "my_data:numbers", "kwargs": {"count": 11}},
        "lines": {"path": "lines.txt", "shuffle_seed": 3},
        "part": {"path": "x.parquet", "split": {"part": "test", "test_size": 0.25}},
    }
    done = raytrain_data(tmp_path, datasets)
    assert done.returncode == 0, done.stderr[-3000:]
    made, lines, part = json.loads(done.stdout)
    assert (made["format"], made["source"], made["rows"]) == ("function", ["my_data:numbers"], 11)
    assert made["rows_per_worker"] == [5]
    assert list(made["schema"]) == ["id", "pixels", "token"]
    assert made["first"][1] == {"id": 1, "pixels": "float64 array of 4×4", "token": "a value of type str"}
    assert (lines["rows"], [row["text"] for row in lines["first"]]) == (3, ["one", "two", "three"])
    assert part["rows"] == 400
    assert part["split"]["exact"] is True
    assert 70 < part["split"]["rows"] < 130
    assert part["rows_per_worker"] == [part["split"]["rows"] // 2]
    assert "starting Ray in this process to read datasets.made" in done.stderr
    assert "the user's own words" in done.stderr
    assert "hunter2" not in done.stdout
