"""Datasets of a step on a real Ray: formats, parts, which are split among the workers, and a preprocessor fitted once."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
import ray

from plugin_core import DatasetConfig, EvaluateSpec, RunConfig, ScalingConfig, TrainSpec, execute
from plugin_core.driver.datasets import load
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from plugin_core.storage.location import be_patient
from plugin_core.supervisor.dataset_views import DatasetView, dataset_views

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def rows(config: DatasetConfig) -> list[dict[str, Any]]:
    return list(load(config, lambda: pytest.fail("no function")).take_all())


def test_each_format_is_read(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    Image.new("RGB", (2, 2), "red").save(tmp_path / "red.png")
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    np.save(tmp_path / "numbers.npy", np.arange(3))
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "rows.csv").write_text("a,b\n1,x\n2,y\n")
    disk = tmp_path / "huggingface"
    disk.mkdir()
    table = pa.table({"a": [1, 2, 3]})
    with pa.OSFile(str(disk / "data-00000-of-00001.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (disk / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))

    assert rows(DatasetConfig(path=str(tmp_path / "red.png"), format="images"))[0]["image"].shape == (2, 2, 3)
    assert [row["text"] for row in rows(DatasetConfig(path=str(tmp_path / "lines.txt")))] == ["one", "two"]
    assert [int(row["data"]) for row in rows(DatasetConfig(path=str(tmp_path / "numbers.npy")))] == [0, 1, 2]
    assert rows(DatasetConfig(path=str(tmp_path / "rows.jsonl"))) == [{"a": 1}, {"a": 2}]
    assert rows(DatasetConfig(path=str(tmp_path / "rows.csv"), columns=["b"])) == [{"b": "x"}, {"b": "y"}]
    assert rows(DatasetConfig(path=str(disk), format="huggingface")) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_tensorflows_records_are_read(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    def features(number: int) -> Any:
        of = tf.train.Feature
        return tf.train.Example(
            features=tf.train.Features(
                feature={
                    "id": of(int64_list=tf.train.Int64List(value=[number])),
                    "x": of(float_list=tf.train.FloatList(value=[number / 2, 1.0])),
                    "name": of(bytes_list=tf.train.BytesList(value=[f"n{number}".encode()])),
                }
            )
        )

    for name, options in (("a.tfrecords", None), ("b.tfrecord.gz", tf.io.TFRecordOptions(compression_type="GZIP"))):
        with tf.io.TFRecordWriter(str(tmp_path / name), options) as writer:
            for number in range(3):
                writer.write(features(number).SerializeToString())
        found = sorted(rows(DatasetConfig(path=str(tmp_path / name))), key=lambda row: row["id"])
        assert [row["id"] for row in found] == [0, 1, 2]
        assert [row["name"] for row in found] == [b"n0", b"n1", b"n2"]
        assert [list(row["x"]) for row in found] == [[0.0, 1.0], [0.5, 1.0], [1.0, 1.0]]
        assert list(rows(DatasetConfig(path=str(tmp_path / name), columns=["id"]))[0]) == ["id"]


def test_avro_is_read(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro", reason="fastavro, of the extra avro, is not installed")
    schema = {"type": "record", "name": "row", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    written = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    with (tmp_path / "rows.avro").open("wb") as file:
        fastavro.writer(file, schema, written)
    assert rows(DatasetConfig(path=str(tmp_path / "rows.avro"))) == written
    assert rows(DatasetConfig(path=str(tmp_path / "rows.avro"), columns=["b"])) == [{"b": "x"}, {"b": "y"}]


def test_lines_of_json_are_read_from_files_of_any_kind(tmp_path: Path) -> None:
    lines = b'{"a": 1, "b": {"c": [1]}}\n{"a": 2, "b": {"c": []}}\n'
    (tmp_path / "rows.jsonl").write_bytes(lines)
    (tmp_path / "rows.json").write_bytes(lines)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(lines))
    for name in ("rows.jsonl", "rows.json", "rows.jsonl.gz"):
        assert [row["a"] for row in rows(DatasetConfig(path=str(tmp_path / name)))] == [1, 2], name
    folder = DatasetConfig(path=str(tmp_path), format="json", columns=["a"])
    assert sorted(row["a"] for row in rows(folder)) == [1, 1, 1, 2, 2, 2]


def test_a_folder_that_huggingface_did_not_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no state\.json that lists files; expected a folder written by datasets"):
        rows(DatasetConfig(path=str(tmp_path), format="huggingface"))


def look(function: Any, **fields: Any) -> DatasetView:
    """What `raytrain data` shows of the dataset that this function returns."""
    spec = TrainSpec(framework="python", train_loop_per_worker=seeing, datasets={"train": {"function": function, **fields}})
    (view,) = dataset_views(spec, 2, False, pytest.fail)
    return view


def test_a_functions_dataset_is_shown_and_counted_only_if_asked() -> None:
    view = look(
        lambda count: ray.data.from_items([{"a": n} for n in range(count)]),
        kwargs={"count": 4},
        shuffle_seed=1,
        reshuffle=True,
    )
    assert (view.rows, view.rows_per_worker, view.schema) == (None, None, {"a": "int64"})
    assert view.first == [{"a": 0}, {"a": 1}]
    assert view.source[0].endswith("<lambda>")


def test_a_function_that_returns_something_else_or_fails_is_told() -> None:
    with pytest.raises(SpecError, match=r"datasets\.train\.function: got one that returns list; expected .* a Ray Dataset"):
        look(lambda: [1, 2])
    with pytest.raises(UserCodeError, match="division by zero") as caught:
        look(lambda: 1 / 0)
    assert "look(lambda: 1 / 0)" in caught.value.details


def make_preprocessor() -> Any:
    from ray.data.preprocessors import StandardScaler

    return StandardScaler(columns=["x"])


def seeing(config: dict[str, Any]) -> None:
    """Reports how many rows of each dataset this worker has, and the mean of all of `train` that it sees."""
    import tempfile

    import ray.train

    counts, total = {}, 0.0
    for name in config["datasets"]:
        batches = list(ray.train.get_dataset_shard(name).iter_batches(batch_size=None))
        counts[name] = sum(len(batch["x"]) for batch in batches)
        total += sum(float(batch["x"].sum()) for batch in batches) if name == "train" else 0.0
    metrics = {**counts, "sum": total}
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_text("1")
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def judge(checkpoint: Any, dataset: Any) -> dict[str, float]:
    from plugin_core import load_preprocessor

    scaled = load_preprocessor(checkpoint).transform(dataset).to_pandas()["x"]
    return {"rows": len(scaled), "largest": float(scaled.max())}


def test_parts_shards_and_a_preprocessor_saved_with_the_checkpoint(tmp_path: Path) -> None:
    file = str(tmp_path / "x.parquet")
    pyarrow.parquet.write_table(pa.table({"x": np.arange(400, dtype=np.float64)}), file)

    def part(name: str, **fields: Any) -> DatasetConfig:
        return DatasetConfig(path=file, split={"part": name, "test_size": 0.25}, **fields)

    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=seeing,
        train_loop_config={"datasets": ["train", "test"]},
        datasets={"train": part("train", shuffle_seed=3), "test": part("test", shard=False, materialize=True)},
        preprocessor=make_preprocessor,
        report_all_ranks=True,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="data", storage_path=str(tmp_path)),
    )
    result = execute(spec)
    assert not be_patient(False), "this process waits no longer for a storage than before"
    (report,) = read_reports(RunDir.at(result.run.uri))
    first, second = report["ranks"]
    test = first["test"]
    assert test == second["test"], "all of it on each worker"
    assert 70 < test < 130
    assert abs(first["train"] - second["train"]) <= 1, "a part each"
    assert first["train"] + second["train"] in (400 - test, 400 - test - 1), "Ray gives each worker the same number"
    assert abs(first["sum"] + second["sum"]) < 5, "scaled to a mean of 0"
    evaluation = execute(
        EvaluateSpec(
            evaluate=judge,
            checkpoint=result.checkpoint,
            dataset=part("test"),
            run_config=RunConfig(name="judge", storage_path=str(tmp_path)),
        )
    )
    assert evaluation.metrics["rows"] == test, "the same part in another step"
    assert 1.2 < evaluation.metrics["largest"] < 2, "in deviations of the training's part"


def test_a_function_that_returns_no_preprocessor_is_reported(tmp_path: Path) -> None:
    file = str(tmp_path / "x.parquet")
    pyarrow.parquet.write_table(pa.table({"x": [1.0]}), file)
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=seeing,
        datasets={"train": file},
        preprocessor=lambda: "scaler",
        run_config=RunConfig(name="wrong", storage_path=str(tmp_path)),
    )
    with pytest.raises(SpecError, match="preprocessor: got a function that returns str; expected one that returns a"):
        execute(spec)
