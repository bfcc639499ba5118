"""How many rows are predicted so far."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.data import DataContext

from plugin_core.ray_internals import data_progress
from plugin_core.ray_internals.data_progress import RowsTold, rows_told


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
