"""What a run's journal says as a whole, however long it is."""

import itertools
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import ROWS, History


def entries(count: int, **more: Any) -> Iterator[dict[str, Any]]:
    for number in range(1, count + 1):
        metrics = {"loss": 1 / number, "epoch": number - 1}
        yield {"report": number, "attempt": 1, "time": float(number), "metrics": metrics, "checkpoint": None, **more}


def test_it_counts_the_reports_and_keeps_the_first_the_last_and_an_even_sample() -> None:
    for count in (1, 2, ROWS, ROWS + 1, 1001, 12_345):
        history = History.of(entries(count))
        assert history.reports == count
        assert history.first is not None
        assert history.first["report"] == 1
        assert history.last is not None
        assert history.last["report"] == count
        numbers = [entry["report"] for entry in history.sample]
        assert min(count, ROWS // 2) <= len(numbers) <= ROWS + 1
        assert numbers[-1] == count
        steps = {later - earlier for earlier, later in itertools.pairwise(numbers[:-1])}
        assert len(steps) <= 1, "evenly apart but for the last"
        assert history.counters == ["epoch"]
    assert History().sample == []
    assert History().metrics == {}


def test_memory_for_50_000_reports_of_8_ranks_equals_that_for_a_few() -> None:
    ranks = [{"loss": float(rank), "note": "x" * 50} for rank in range(8)]
    tracemalloc.start()
    try:
        History.of(entries(500, ranks=ranks))
        few = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        History.of(entries(50_000, ranks=ranks))
        many = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert many < few + 500_000


def test_the_history_keeps_entries_of_existing_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "run"
    lines = [
        {"attempt": 1, "time": 1.0, "report": n, "metrics": {"loss": n}, "checkpoint": f"checkpoint_a001_{n:06}"}
        for n in range(1, 6)
    ]
    (run / ".step/journal").mkdir(parents=True)
    (run / ".step/journal/001-0001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for number in (2, 4):
        (run / f"checkpoint_a001_{number:06}").mkdir()
    history = History.read(RunDir.at(str(run)))
    assert [(name, entry["report"]) for name, entry in history.checkpoints.items()] == [
        ("checkpoint_a001_000002", 2),
        ("checkpoint_a001_000004", 4),
    ]
    assert (history.checkpointed, history.last_checkpoint) == (5, "checkpoint_a001_000005")


def test_checkpoints_without_a_number_as_their_score_are_counted() -> None:
    scores = [{"eval": {"f1": 0.5}}, {"eval": {"f1": None}}, {"loss": 1.0}, {"eval": {"f1": True}}]
    reports = [
        {"report": n, "metrics": metrics, "checkpoint": f"c{n}" if n < 4 else None} for n, metrics in enumerate(scores, 1)
    ]
    history = History.of(reports, score="eval/f1")
    assert (history.checkpointed, history.unranked, history.names) == (3, 2, {"eval", "loss"})
