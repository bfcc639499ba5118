"""`raytrain data` on files that pyarrow reads: without Ray, a cluster or a run."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from devtools.written_runs import Raytrain
from plugin_core.supervisor import dataset_views

EVIL = "\x1b]0;owned\x07\x1b[31m[red]x[/red]"


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("Ray is started")

    monkeypatch.setattr("ray.init", refuse)


@pytest.fixture
def customers(storage: str, tmp_path: Path) -> Path:
    """1,001 rows, in the working directory."""
    table = pa.table({"age": list(range(1001)), "name": [f"n{number}" for number in range(1001)]})
    pa.parquet.write_table(table, tmp_path / "customers.parquet")
    return tmp_path / "customers.parquet"


def spec(tmp_path: Path, **fields: Any) -> str:
    file = tmp_path / "step.json"
    file.write_text(json.dumps({"framework": "python", "train_loop_per_worker": "a:b", **fields}))
    return str(file)


def words(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines()]


def told(raytrain: Raytrain, file: str, *options: str) -> Any:
    code, out, err = raytrain("data", file, *options, "--json")
    assert code == 0, err
    return json.loads(out)


def test_a_dataset_is_shown_with_its_rows_and_how_workers_share_it(
    customers: Path, tmp_path: Path, raytrain: Raytrain
) -> None:
    datasets = {"train": "customers.parquet", "test": {"path": "customers.parquet", "shard": False, "columns": ["name"]}}
    file = spec(tmp_path, datasets=datasets, scaling_config={"num_workers": 2})
    code, out, err = raytrain("data", file, "--rows", "2")
    assert (code, err) == (0, "")
    assert words(out) == [
        f"datasets.train: {customers} (parquet), 1,001 rows",
        "workers: 2 workers, each gets 500 rows",
        "COLUMN TYPE ROW 1 ROW 2",
        "age int64 0 1",
        "name string n0 n1",
        "",
        f"datasets.test: {customers} (parquet), 1,001 rows",
        "workers: 2 workers, each gets all rows",
        "COLUMN TYPE ROW 1 ROW 2",
        "name string n0 n1",
    ]
    train, test = told(raytrain, file)
    assert (train["dataset"], train["rows"], train["rows_per_worker"]) == ("datasets.train", 1001, [500])
    assert (test["shard"], test["rows_per_worker"], test["schema"]) == (False, [1001], {"name": "string"})
    assert train["first"] == [{"age": number, "name": f"n{number}"} for number in range(3)]


@pytest.mark.usefixtures("customers")
def test_a_part_is_estimated_and_an_elastic_training_has_two_numbers(tmp_path: Path, raytrain: Raytrain) -> None:
    train = {"path": "customers.parquet", "split": {"part": "train", "test_size": 0.2}, "shuffle_seed": 7}
    file = spec(tmp_path, datasets={"train": train}, scaling_config={"num_workers": [2, 4]})
    lines = words(raytrain("data", file, "--rows", "0")[1])
    assert lines[1:4] == [
        "split: the train part of test_size 0.2, about 801 rows",
        "workers: 2 to 4 workers, each gets about 400 to 200 rows",
        "shuffled with seed 7; the rows below are not",
    ]
    (view,) = told(raytrain, file)
    assert view["split"] == {"part": "train", "test_size": 0.2, "rows": 801, "exact": False}
    assert (view["workers"], view["rows_per_worker"]) == ([2, 4], [400, 200])


@pytest.mark.usefixtures("customers")
def test_a_dataconfig_of_the_users_own_decides_what_workers_get(tmp_path: Path, raytrain: Raytrain) -> None:
    file = spec(tmp_path, datasets={"train": "customers.parquet"}, data_config="a:b", scaling_config={"num_workers": 2})
    assert words(raytrain("data", file)[1])[1] == "workers: 2 workers; data_config decides what each gets"
    (view,) = told(raytrain, file)
    assert (view["shard"], view["workers"], view["rows_per_worker"]) == (None, [2], None)


def test_csv_and_json_are_counted_if_they_are_small_or_if_asked(
    storage: str, tmp_path: Path, raytrain: Raytrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n" + "1,x\n" * 50)
    (tmp_path / "folder").mkdir()
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / "folder" / name).write_text('{"a": 1}\n' * 10)
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(b'{"a": 2}\n' * 7))
    datasets = {
        "csv": "rows.csv",
        "json": {"path": ["folder", "rows.jsonl.gz"], "format": "json"},
    }
    file = spec(tmp_path, datasets=datasets)
    assert [view["rows"] for view in told(raytrain, file)] == [50, 27]
    monkeypatch.setattr(dataset_views, "COUNTED_BYTES", 10)
    views = told(raytrain, file)
    assert [view["rows"] for view in views] == [None, None]
    assert [view["rows_per_worker"] for view in views] == [None, None]
    assert [len(view["first"]) for view in views] == [3, 3]
    out = words(raytrain("data", file)[1])
    assert out[0].endswith("(csv), not counted (--count counts)")
    assert out[1] == "workers: 1 worker, each gets the same number of rows"
    assert [view["rows"] for view in told(raytrain, file, "--count")] == [50, 27]


def test_datasets_of_other_steps_have_no_workers(customers: Path, tmp_path: Path, raytrain: Raytrain) -> None:
    train = {"framework": "python", "train_loop_per_worker": "a:b", "datasets": {"train": str(customers)}}
    tune = {"kind": "tune", "train": train, "param_space": {"train_loop_config": {"lr": {"uniform": [0, 1]}}}}
    (tmp_path / "tune.json").write_text(json.dumps({**tune, "metric": "loss", "mode": "min", "num_samples": 2}))
    (view,) = told(raytrain, "tune.json")
    assert (view["dataset"], view["workers"]) == ("train.datasets.train", [1])
    infer = {"kind": "batch_infer", "predictor": "a:b", "checkpoint": str(tmp_path), "dataset": str(customers)}
    (tmp_path / "infer.json").write_text(json.dumps(infer))
    (view,) = told(raytrain, "infer.json")
    assert (view["dataset"], view["workers"], view["rows_per_worker"]) == ("dataset", None, None)


def test_a_step_without_datasets_says_so(storage: str, tmp_path: Path, raytrain: Raytrain) -> None:
    file = spec(tmp_path)
    assert raytrain("data", file) == (0, "", "the step has no dataset\n")
    assert told(raytrain, file) == []


def test_neither_secrets_nor_what_a_terminal_obeys_is_printed(storage: str, tmp_path: Path, raytrain: Raytrain) -> None:
    rows = {
        "link": ["https://me:hunter2@example.com/x?sig=hunter2"],
        "api_token": ["hunter2"],
        "nested": [{"password": "hunter2", "deep": [{"secret": "hunter2"}]}],
        EVIL: [EVIL],
        "raw": [b"\x1b[31m" * 100],
        "many": [list(range(1000))],
        "long": ["y" * 10_000],
        "nan": [float("nan")],
    }
    pa.parquet.write_table(pa.table(rows), tmp_path / "rows.parquet")
    file = spec(tmp_path, datasets={"train": "rows.parquet"})
    for options in ([], ["--json"]):
        code, out, err = raytrain("data", file, *options)
        assert code == 0, err
        assert "hunter2" not in out + err
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
    (first,) = told(raytrain, file)[0]["first"]
    assert first["api_token"] == "a value of type str"
    assert first["raw"] == "500 bytes"
    assert first["many"] == "list of 1000"
    assert first["nan"] is None
    assert len(first["long"]) < 300
    assert "[red]x[/red]" in raytrain("data", file)[1]


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("gone.parquet", "datasets.train.path: got '{here}/gone.parquet', which does not exist; expected an existing"),
        ("customers.csv", "datasets.train.path: got '{here}/customers.csv'; expected readable csv ("),
        ("broken.parquet", "datasets.train.path: got '{here}/broken.parquet'; expected readable parquet ("),
        ({"path": "customers.parquet", "columns": ["aeg"]}, "datasets.train.columns: got 'aeg', not found in"),
        ({"function": "no.such:thing"}, "datasets.train.function: got 'no.such:thing', which cannot be imported ("),
    ],
)
@pytest.mark.usefixtures("customers")
def test_what_a_submit_would_refuse_is_told(tmp_path: Path, raytrain: Raytrain, dataset: Any, said: str) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"PAR1" + b"x" * 100)
    (tmp_path / "customers.csv").write_text("a,b\n1,2\n1,2,3\n")
    code, out, err = raytrain("data", spec(tmp_path, datasets={"train": dataset}))
    assert (code, out) == (2, "")
    assert said.format(here=tmp_path) in " ".join(err.split())


def test_a_ray_that_does_not_start_is_told(
    storage: str, tmp_path: Path, raytrain: Raytrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(**options: Any) -> None:
        raise Exception("the raylet took too long")

    monkeypatch.setattr("ray.init", slow)
    (tmp_path / "lines.txt").write_text("one\n")
    code, out, err = raytrain("data", spec(tmp_path, datasets={"train": "lines.txt"}))
    assert (code, out) == (11, "")
    assert "starting Ray in this process to read datasets.train" in err
    assert "datasets.train: Ray, which reads it, did not start in this process: the raylet took too long" in err


def test_what_is_no_spec_is_refused(storage: str, tmp_path: Path, raytrain: Raytrain) -> None:
    code, _, err = raytrain("data", str(tmp_path / "none.yaml"))
    assert code == 2
    assert "spec file: got" in err
