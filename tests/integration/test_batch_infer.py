"""Batch inference on a real Ray head: what is written, what survives a kill, what is refused."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from devtools.chaos import Running, drivers, kill, wait_until
from devtools.ray_heads import Memory, OwnHead
from plugin_core import BatchInferSpec, DatasetConfig, LocalCluster, RunConfig, TrainSpec, run, save_preprocessor
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.output_folder import COMMIT
from plugin_core.supervisor.events import Event


class Doubler:
    """Twice `x`; records which process runs; its twentieth batch waits until the file `hold` is there, and its second one
    until `replicas` processes run."""

    def __init__(self, checkpoint: Any, pids: str = "", hold: str = "", replicas: int = 1):
        self.pids = Path(pids) if pids else None
        self.replicas = replicas
        self.hold = Path(hold) if hold else None
        self.batches = 0
        if pids:
            Path(pids, str(os.getpid())).touch()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.batches += 1
        while self.hold is not None and self.batches == 20 and not self.hold.exists():
            time.sleep(0.05)
        while self.pids is not None and self.batches == 2 and len(list(self.pids.iterdir())) < self.replicas:
            time.sleep(0.05)
        kept = {name: values for name, values in batch.items() if name != "ballast"}
        return {**kept, "twice": 2 * batch["x"]}


class Halver(Doubler):
    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {name: values[batch["key"] % 2 == 0] for name, values in batch.items()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"epoch": 0}))
    return str(folder)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Eight files of 250 rows, with a key across all; big enough for Ray Data to read each by itself."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for part in range(8):
        keys = np.arange(250) + 250 * part
        region = [("north", "south")[key % 2] for key in keys]
        ballast = [os.urandom(8000) for _ in keys]
        table = pa.table({"key": keys, "x": keys * 1.0, "region": region, "ballast": ballast})
        pyarrow.parquet.write_table(table, folder / f"part-{part}.parquet", row_group_size=50)
    return str(folder)


def spec(tmp_path: Path, checkpoint: str, rows: str, **fields: Any) -> BatchInferSpec:
    defaults: dict[str, Any] = {
        "predictor": Doubler,
        "checkpoint": checkpoint,
        "dataset": {"path": rows, "format": "parquet"},
        "batch_size": 50,
        "run_config": RunConfig(name="infer", storage_path=str(tmp_path / "runs")),
    }
    return BatchInferSpec(**{**defaults, **fields})


def read(place: str, **options: Any) -> pd.DataFrame:
    return pyarrow.dataset.dataset(place, **options).to_table().to_pandas()


def check_rows(found: pd.DataFrame) -> None:
    """No row twice, none missing, each with its own prediction."""
    assert sorted(found["key"]) == list(range(2000))
    assert (found["twice"] == 2.0 * found["key"]).all()


@pytest.mark.slow
def test_parquet_by_partition_with_chosen_columns(
    cluster: LocalCluster, tmp_path: Path, checkpoint: str, rows: str
) -> None:
    chosen = {"output_columns": ["key", "twice", "region"], "partition_by": ["region"], "preserve_rows": True}
    told: list[Event] = []
    result = run(spec(tmp_path, checkpoint, rows, output_path=str(tmp_path / "out"), **chosen), cluster, told.append)
    log = "".join(event.text for event in told if event.kind == "log")
    assert "Total Progress: " in log, "Ray Data says how far it is"
    assert "row/s" not in log, "in lines, not in bars that are drawn again"
    assert [event.data["rows"] for event in told if "rows" in event.data and event.kind == "phase"][-1] == 2000
    assert result.rows == 2000
    assert result.output == str(tmp_path / "out" / "attempt-001")
    found = read(str(tmp_path / "out"), partitioning="hive", format="parquet", exclude_invalid_files=True)
    check_rows(found)
    assert sorted(path.name for path in Path(result.output).iterdir()) == ["region=north", "region=south"]
    marker = json.loads((tmp_path / "out" / "_SUCCESS.json").read_text())
    assert marker["rows"] == sum(marker["files"].values()) == 2000


@pytest.mark.parametrize("output_format", ["csv", "json"])
@pytest.mark.slow
def test_text_in_the_order_of_the_dataset(
    cluster: LocalCluster, tmp_path: Path, checkpoint: str, rows: str, output_format: Any
) -> None:
    ordered = {"output_format": output_format, "preserve_order": True, "concurrency": 2}
    result = run(spec(tmp_path, checkpoint, rows, **ordered), cluster)
    files = json.loads(Path(result.output).parent.joinpath("_SUCCESS.json").read_text())["files"]
    frames = [read(f"{result.output}/{name}", format=output_format) for name in files]
    assert list(pd.concat(frames)["key"]) == list(range(2000))


@pytest.mark.slow
def test_a_preprocessor_of_the_checkpoint_transforms_each_batch(
    cluster: LocalCluster, tmp_path: Path, checkpoint: str, rows: str
) -> None:
    import ray.train
    from ray.data.preprocessors import StandardScaler

    scaler = StandardScaler(columns=["x"])
    scaler.stats_ = {"mean(x)": 1000.0, "std(x)": 10.0}
    scaler._fitted = True
    save_preprocessor(ray.train.Checkpoint(checkpoint), scaler)
    result = run(spec(tmp_path, checkpoint, rows), cluster)
    found = read(result.output)
    assert np.allclose(found["twice"], 2 * (found["key"] - 1000.0) / 10.0)


@pytest.mark.slow
@pytest.mark.parametrize("key_column", [None, "key"])
def test_a_killed_driver_leaves_each_row_exactly_once(
    cluster: LocalCluster, tmp_path: Path, checkpoint: str, rows: str, key_column: str | None
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    config = {"pids": str(pids), "hold": str(tmp_path / "go")}
    given = spec(tmp_path, checkpoint, rows, config=config, key_column=key_column, output_path=str(tmp_path / "out"))
    running = Running(given, cluster)
    first = "rows" if key_column else "attempt-001"
    wait_until(lambda: len(list((tmp_path / "out" / first).glob("*.parquet"))) >= 2)
    (driver,) = drivers(running.rundir.uri)
    kill(driver)
    (tmp_path / "go").touch()
    result = running.result()
    assert result.run.attempt == 2
    check_rows(read(result.output))
    assert result.rows == 2000
    left = "rows" if key_column else "attempt-002"
    found = [name for name in sorted(os.listdir(tmp_path / "out")) if not name.startswith(COMMIT)]
    assert found == ["_RUN.json", "_SUCCESS.json", left]


@pytest.mark.slow
def test_a_killed_actor_leaves_each_row_exactly_once(
    cluster: LocalCluster, tmp_path: Path, checkpoint: str, rows: str
) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    config = {"pids": str(pids), "hold": str(tmp_path / "go")}
    running = Running(spec(tmp_path, checkpoint, rows, config=config, output_path=str(tmp_path / "out")), cluster)
    wait_until(lambda: list((tmp_path / "out" / "attempt-001").glob("*.parquet")))
    kill(int(next(pids.iterdir()).name))
    (tmp_path / "go").touch()
    result = running.result()
    assert result.run.attempt == 1
    assert len(list(pids.iterdir())) == 2
    check_rows(read(result.output))


def test_impossible_settings_are_refused_before_anything_runs(
    cluster: LocalCluster, tmp_path: Path, checkpoint: str, rows: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.csv").write_text("x")
    home = RunDir.at(str(tmp_path / "xgb"))
    data = {"train": DatasetConfig(path=rows, format="parquet")}
    home.write_child_spec(TrainSpec(framework="xgboost", params={}, label_column="y", datasets=data))
    made = home.location.child("checkpoint_1")
    made.child("model").write(b"m")
    for fields, words in (
        ({"output_path": str(tmp_path / "out")}, "output_path: got"),
        ({"key_column": "id"}, "key_column: got 'id', not found in"),
        (
            {"checkpoint": made.uri, "framework": "torch"},
            "a checkpoint of framework 'xgboost'; expected one of framework 'torch'",
        ),
        ({"output_format": "csv", "partition_by": ["region"]}, "partition_by: got it with output_format 'csv'"),
    ):
        with pytest.raises(SpecError) as caught:
            run(spec(tmp_path, fields.pop("checkpoint", checkpoint), rows, **fields), cluster)
        assert words in caught.value.message
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_predictor_that_loses_rows_is_reported_where_rows_count(
    cluster: LocalCluster, tmp_path: Path, checkpoint: str, rows: str
) -> None:
    with pytest.raises(UserCodeError, match=r"predictor: returned 25 rows for 50; expected one per input row"):
        run(spec(tmp_path, checkpoint, rows, predictor=Halver, preserve_rows=True), cluster)
    dropped = run(
        spec(tmp_path, checkpoint, rows, predictor=Halver, run_config=RunConfig(name="h", storage_path=str(tmp_path))),
        cluster,
    )
    assert dropped.rows == 1000


class Echo(Doubler):
    """Keeps everything, so that as much is written as is read."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "twice": 2 * batch["x"]}


@pytest.mark.slow
def test_a_dataset_of_four_times_the_memory_is_predicted_within_it(
    own_head: Callable[..., OwnHead], tmp_path: Path, checkpoint: str
) -> None:
    memory, parts, part_rows, row = 150_000_000, 12, 1000, 50_000
    assert parts * part_rows * row == 4 * memory
    folder = tmp_path / "large"
    folder.mkdir()
    for part in range(parts):
        keys = np.arange(part_rows) + part_rows * part
        table = pa.table({"key": keys, "x": keys * 1.0, "ballast": [os.urandom(row) for _ in keys]})
        pyarrow.parquet.write_table(table, folder / f"part-{part}.parquet", row_group_size=100)
    head = own_head(object_store_memory=memory, preload=False)  # copies share memory, which would count for each
    with Memory(head) as little:
        run(spec(tmp_path, checkpoint, str(folder / "part-0.parquet"), predictor=Echo), head.cluster())
    with Memory(head) as taken:
        other = RunConfig(name="all", storage_path=str(tmp_path / "runs"))
        result = run(spec(tmp_path, checkpoint, str(folder), predictor=Echo, run_config=other), head.cluster())
    assert result.rows == parts * part_rows
    written = read(result.output, format="parquet")[["key", "twice"]].sort_values("key")
    assert (written["key"].to_numpy() == np.arange(result.rows)).all()
    assert (written["twice"] == 2.0 * written["key"]).all()
    assert 0 < taken.shared <= 1.1 * memory
    assert taken.private - little.private < 2 * memory, "beside what the processes take for a twelfth of the data"


@pytest.mark.slow
def test_a_pool_grows_while_there_is_more_to_do(cluster: LocalCluster, tmp_path: Path, checkpoint: str, rows: str) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    config = {"pids": str(pids), "replicas": 2}
    result = run(spec(tmp_path, checkpoint, rows, config=config, concurrency=(1, 2), batch_size=25), cluster)
    check_rows(read(result.output))
    assert len(list(pids.iterdir())) == 2
