"""Datasets: splits decided by the rows alone, and what is checked before a submit."""

import gzip
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plugin_core import DatasetConfig, EvaluateSpec, ScalingConfig
from plugin_core.driver.datasets import in_part, load
from plugin_core.driver.train.step import _collect
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.runs.context import StepContext
from plugin_core.runs.dataset_fingerprint import dataset_fingerprint
from plugin_core.runs.directory import RunDir
from plugin_core.specs import SplitConfig
from plugin_core.specs.results import TrainResult
from plugin_core.supervisor.preflight import check_functions_and_data
from tests.support.fake_steps import spec_at

ROWS = [{"id": number, "name": f"n{number}", "pixels": np.full(4, number, dtype=np.float32)} for number in range(2000)]


def part(name: str, rows: list[dict[str, object]] = ROWS, **fields: object) -> list[int]:
    split = SplitConfig(part=name, test_size=0.25, **fields)  # type: ignore[arg-type]
    return [row["id"] for row in rows if in_part(row, split)]  # type: ignore[misc]


def test_the_two_parts_share_no_row_and_together_have_all_rows() -> None:
    train, test = part("train"), part("test")
    assert sorted(train + test) == list(range(2000))
    assert 450 < len(test) < 550


def test_a_row_stays_in_its_part_when_others_are_added_or_reordered() -> None:
    assert sorted(part("test", ROWS[::-1])) == part("test")
    assert part("test", ROWS[:500]) == [number for number in part("test") if number < 500]


def test_another_seed_gives_other_parts() -> None:
    assert part("test", seed=1) != part("test")


def test_rows_that_belong_together_stay_together() -> None:
    rows = [{"id": number, "patient": number // 10} for number in range(1000)]
    test = part("test", rows, by=["patient"])
    assert {number // 10 for number in test}.isdisjoint(number // 10 for number in part("train", rows, by=["patient"]))
    assert len(test) % 10 == 0


@pytest.mark.parametrize("size", [0, 1, 1.5])
def test_a_share_out_of_range_is_refused(size: float) -> None:
    with pytest.raises(SpecError, match=r"split\.test_size: got"):
        DatasetConfig(path="x.parquet", split={"part": "test", "test_size": size})


def test_an_unknown_format_is_reported() -> None:
    with pytest.raises(SpecError, match="format: got 'parket'"):
        DatasetConfig(path="x", format="parket")


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("rows.jsonl", "json"),
        ("rows.JSON.gz", "json"),
        ("s3://b/rows.csv.zst?region=x", "csv"),
        ("part.tfrecords", "tfrecords"),
        ("part.tfrecord.gz", "tfrecords"),
        ("rows.avro", "avro"),
        ("folder.parquet/", "parquet"),
    ],
)
def test_the_extension_implies_the_format(path: str, format: str) -> None:
    assert DatasetConfig(path=path).guessed_format == format


@pytest.mark.parametrize("path", ["rows.gz", "rows.dat", "avro", "gz", "rows.avro.7z"])
def test_other_extensions_imply_none(path: str) -> None:
    with pytest.raises(SpecError, match="format: missing, and not implied by"):
        DatasetConfig(path=path)


def test_another_split_part_counts_as_other_data() -> None:
    parts = (None, {"part": "test", "test_size": 0.2}, {"part": "train", "test_size": 0.2})
    assert len({dataset_fingerprint(DatasetConfig(path="x.csv", version="1", split=split)) for split in parts}) == 3


def test_the_schema_is_part_of_the_datas_fingerprint(tmp_path: Path) -> None:
    import os

    file = tmp_path / "rows.csv"
    found = []
    for header in ("a,b", "a,c"):
        file.write_text(f"{header}\n1,2\n")
        os.utime(file, (1_000_000, 1_000_000))
        found.append(dataset_fingerprint(DatasetConfig(path=str(file))))
    assert found[0] != found[1]


class TestRefusedBeforeASubmit:
    """Each with one sentence that names the field."""

    def refused(self, words: str, tmp_path: Path, **fields: Any) -> None:
        with pytest.raises(SpecError, match=words):
            check_functions_and_data(spec_at(tmp_path, **fields), here=True)

    def rows(self, tmp_path: Path, count: int) -> str:
        file = tmp_path / "rows.csv"
        file.write_text("a,b\n" + "1,2\n" * count)
        return str(file)

    def test_an_empty_dataset(self, tmp_path: Path) -> None:
        self.refused(
            r"datasets\.train: got '.*rows\.csv', which is empty; expected at least one row",
            tmp_path,
            datasets={"train": self.rows(tmp_path, 0)},
        )

    def test_fewer_rows_than_workers(self, tmp_path: Path) -> None:
        self.refused(
            r"datasets\.train: got '.*', which has 3 rows; expected at least 4, one for each worker",
            tmp_path,
            datasets={"train": self.rows(tmp_path, 3)},
            scaling_config=ScalingConfig(num_workers=4),
        )

    def test_a_dataset_that_is_not_sharded_needs_only_one_row(self, tmp_path: Path) -> None:
        whole = DatasetConfig(path=self.rows(tmp_path, 3), shard=False)
        scaling = ScalingConfig(num_workers=4)
        check_functions_and_data(spec_at(tmp_path, datasets={"valid": whole}, scaling_config=scaling), here=True)

    def test_compressed_lines_of_json_are_counted_too(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.jsonl.gz"
        file.write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
        self.refused(
            "has 2 rows; expected at least 3",
            tmp_path,
            datasets={"train": str(file)},
            scaling_config=ScalingConfig(num_workers=3),
        )
        columns = {"path": str(file), "columns": ["b"]}
        self.refused(r"columns: got 'b', not found in .*; expected one of a", tmp_path, datasets={"train": columns})

    def test_a_file_that_is_one_list_of_json(self, tmp_path: Path) -> None:
        file = tmp_path / "rows.json"
        file.write_text('[{"a": 1}, {"a": 2}]')
        self.refused(r"datasets\.train\.path: got '.*'; expected readable json", tmp_path, datasets={"train": str(file)})

    @pytest.mark.parametrize(
        ("format", "package", "extra"), [("avro", "fastavro", "avro"), ("tfrecords", "tensorflow", "tensorflow")]
    )
    def test_a_format_whose_package_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, package: str, extra: str
    ) -> None:
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
        file = tmp_path / f"rows.{format}"
        file.touch()
        words = (
            rf"format: got '{format}', whose package {package} is not installed on the cluster; pip install .*\[{extra}\]'"
        )
        self.refused(rf"datasets\.train\.{words}", tmp_path, datasets={"train": str(file)})
        elsewhere = spec_at(tmp_path, datasets={"train": str(file)})
        check_functions_and_data(elsewhere, here=False)
        with pytest.raises(SpecError, match=rf"^{words}"):
            load(DatasetConfig(path=str(file)), lambda: pytest.fail("no function"))

    def test_a_missing_column(self, tmp_path: Path) -> None:
        dataset = {"path": self.rows(tmp_path, 3), "columns": ["a", "z"]}
        words = r"datasets\.train\.columns: got 'z', not found in .*rows\.csv; expected one of a, b"
        self.refused(words, tmp_path, datasets={"train": dataset})

    def test_an_evaluation_of_nothing(self, tmp_path: Path) -> None:
        spec = EvaluateSpec(
            checkpoint=str(self.checkpoint(tmp_path)),
            predictor="json:loads",
            task="regression",
            dataset=self.rows(tmp_path, 0),
            label_column="a",
            run_config={"name": "e", "storage_path": str(tmp_path)},
        )
        with pytest.raises(SpecError, match=r"dataset: got '.*', which is empty"):
            check_functions_and_data(spec, here=True)

    def checkpoint(self, tmp_path: Path) -> Path:
        folder = tmp_path / "champion"
        folder.mkdir()
        (folder / "model.bin").write_bytes(b"1234")
        return folder

    def test_a_deleted_checkpoint(self, tmp_path: Path) -> None:
        words = r"resume_from: got '.*/gone', which does not exist or was deleted; expected a checkpoint"
        self.refused(words, tmp_path, resume_from=str(tmp_path / "gone"))

    def test_a_damaged_checkpoint(self, tmp_path: Path) -> None:
        folder = self.checkpoint(tmp_path)
        (folder / ".manifest").mkdir()
        (folder / ".manifest" / "00000.json").write_text('{"files": {"model.bin": [400, 1]}}')
        words = r"resume_from: got '.*/champion', which is damaged \(model\.bin has 4 of 400 bytes\)"
        self.refused(words, tmp_path, resume_from=str(folder))

    def test_a_checkpoint_on_a_path_of_the_cluster_is_left_to_the_cluster(self, tmp_path: Path) -> None:
        spec = spec_at(tmp_path, resume_from=str(tmp_path / "gone"))
        check_functions_and_data(spec, here=False)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([{"acc": 0.5}, {"acc": 0.7}], []),
        ([{"val": {"acc": 0.5}}], ["val/acc"]),
        ([{"loss": 1.0}, {"loss": 0.5}], ["got 'acc', which no checkpoint's report has; expected one of loss"]),
        ([{"acc": 0.5}, {"acc": None}], ["1 of 2 checkpoints have no numeric 'acc' and rank last"]),
    ],
)
def test_a_score_that_is_not_always_a_number_is_a_warning(metrics: list[dict[str, Any]], words: list[str]) -> None:
    from plugin_core.driver.train.step import _score_warnings
    from plugin_core.runs.history import History

    reports = [{"report": number, "metrics": each, "checkpoint": "c"} for number, each in enumerate(metrics)]
    score = "val/acc" if words == ["val/acc"] else "acc"
    found = _score_warnings(History.of(reports, score=score))
    assert len(found) == len([word for word in words if word != "val/acc"])
    for warning, word in zip(found, words, strict=False):
        assert word in warning
        assert "checkpoint_score_attribute" in warning


def collected(tmp_path: Path, score: str | None, searching: bool = False) -> TrainResult:
    """The result of a training that reported nothing."""
    config = {"name": "run", "storage_path": str(tmp_path), "checkpoint_config": {"checkpoint_score_attribute": score}}
    spec = spec_at(tmp_path, run_config=config)
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    ray_result = SimpleNamespace(metrics=None, checkpoint=None, best_checkpoints=[])
    return _collect(ray_result, StepContext(spec, rundir, 1, {}, lambda phase: None), None, searching)


def test_a_training_that_reported_nothing_says_so_in_log_and_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):
        result = collected(tmp_path, None)
    assert result.warnings == [
        "the training reported nothing, so it has no metrics and no checkpoint; expected ray.train.report(metrics,"
        " checkpoint=…) in its loop"
    ]
    assert result.warnings[0] in caplog.text


def test_a_training_that_reported_nothing_fails_where_a_score_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError) as caught:
        collected(tmp_path, "loss")
    assert "checkpoint_score_attribute: got 'loss', but the training reported nothing; expected" in caught.value.message
    assert not caught.value.retryable
    # a trial that another one's last checkpoint was given to has nothing left to report
    assert collected(tmp_path, "loss", searching=True).warnings
