"""How many rows are predicted so far."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.data import DataContext

from plugin_core import CheckpointRef, EvaluateSpec
from plugin_core.driver.evaluate import step
from plugin_core.ray_internals import data_progress
from plugin_core.ray_internals.data_progress import RowsTold, rows_told
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader
from plugin_core.supervisor.story import phase_in_words


def executing(rows: Any) -> Any:
    """Ray Data's executor, as far as it is asked."""
    named = {"TaskPoolMapOperator[ReadParquet]": 7, "ActorPoolMapOperator[MapBatches(Predict)->Project]": rows}
    operators = [
        SimpleNamespace(name=name, metrics=SimpleNamespace(rows_task_outputs_generated=count))
        for name, count in named.items()
    ]
    return SimpleNamespace(_topology={id(op): op for op in operators}.values())


def test_rows_are_told_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [100.0], []
    monkeypatch.setattr(data_progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    data_progress.begin()
    data_progress.begin()
    with rows_told("Predict", told.append):
        assert DataContext.get_current().custom_execution_callback_classes.count(RowsTold) == 1
        callback = RowsTold()
        for rows, now[0] in ((10, 101.0), (20, 102.0), (30, 103.0), (40, 104.5)):
            callback.on_execution_step(executing(rows))
        assert told == [20, 40]
        callback.after_execution_succeeds(executing(50))
    callback.after_execution_succeeds(executing(60))
    assert told == [20, 40, 50]


def test_a_long_execution_tells_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = [0.0], []
    monkeypatch.setattr(data_progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with rows_told("Predict", told.append):
        callback = RowsTold()
        for second in range(3600):
            now[0] = float(second)
            callback.on_execution_step(executing(second))
    assert len(told) < 120


def test_what_ray_data_has_changed_ends_no_execution() -> None:
    with rows_told("Predict", lambda rows: pytest.fail(f"nothing is known: {rows}")):
        RowsTold().after_execution_succeeds(SimpleNamespace(_topology=[SimpleNamespace(name="MapBatches(Predict)")]))
        RowsTold().after_execution_succeeds(SimpleNamespace(_topology=None))


class Batches:
    """A dataset of Ray Data's, as far as an evaluation asks; each batch takes three seconds."""

    def __init__(self, now: list[float]):
        self._now = now

    def map_batches(self, kind: Any, fn_constructor_args: Any, **options: Any) -> "Batches":
        self._actor = kind(*fn_constructor_args)
        return self

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        for size in (10, 20, 5):
            self._now[0] += 3.0
            counted = self._actor({"label": np.arange(size) % 2})
            yield {"tallies": counted["tallies"][0], "rows": np.int64(counted["rows"][0])}


def test_an_evaluation_tells_how_many_rows_are_done_also_as_a_part_of_a_retraining(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(data_progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(step, "_dataset", lambda context, spec: Batches(now))
    outer = RunDir.at(str(tmp_path / "run"))
    outer.claim(1, "http://x", "session")
    given: dict[str, Any] = {"task": "classification", "checkpoint": str(tmp_path), "dataset": {"path": "/x.csv"}}
    spec = EvaluateSpec(predictor="value:predict#0", **given)  # as a run directory has it
    payload = {"evaluate.predictor": lambda batch: {"prediction": batch["label"]}}
    whole = StepContext(spec, outer, 1, payload, lambda phase: None)
    for context in (whole.child("a", spec, "evaluate"), whole.child("b", spec, "evaluate")):
        for checkpoint in (spec.checkpoint, CheckpointRef(uri=str(tmp_path))):
            metrics, _, _ = step._by_predictor(context, spec, checkpoint)
            assert (metrics["rows"], metrics["accuracy"]) == (35, 1.0)
    each = [
        f"evaluating{which}: {rows} rows so far"
        for which in ("", " the checkpoint to compare with")
        for rows in (10, 30, 35, 35)
    ]
    assert [phase_in_words(entry) for entry in JournalReader(outer)] == 2 * each
