"""How far a training is, from its reports."""

from typing import Any

import pytest

from plugin_core.supervisor.progress import Progress, Reading, duration


def entry(time: float, attempt: int = 1, **metrics: Any) -> dict[str, Any]:
    return {"attempt": attempt, "time": time, "report": 1, "metrics": metrics}


def test_the_fraction_is_epochs_done_divided_by_epochs_in_the_config() -> None:
    progress = Progress({"epochs": 10})
    assert progress.read(entry(100.0, epoch=0)) == Reading(0.1)
    assert progress.read(entry(110.0, epoch=1)) == Reading(0.2, 0.1, 80.0)
    assert str(progress.read(entry(120.0, epoch=2))) == "30%, 10 s/report, ETA 70 s"


def test_a_report_may_state_its_own_progress() -> None:
    assert Progress().read(entry(1.0, progress=0.25)).fraction == 0.25
    assert Progress({"epochs": 2}).read(entry(1.0, progress=7, epoch=0)).fraction == 1.0


@pytest.mark.parametrize("metrics", [{"loss": 0.5}, {"epoch": None}, {"epoch": "3"}, {"progress": True}])
def test_without_a_counter_there_is_a_rate_but_no_estimate(metrics: dict[str, Any]) -> None:
    progress = Progress({"epochs": 10})
    progress.read(entry(1.0, **metrics))
    reading = progress.read(entry(1.5, **metrics))
    assert (reading.fraction, reading.per_s, reading.eta_s) == (None, 2.0, None)
    assert str(reading) == "2 reports/s"


def test_the_time_between_two_attempts_is_not_a_slow_report() -> None:
    progress = Progress({"steps": 4})
    progress.read(entry(1.0, step=0))
    assert progress.read(entry(1000.0, attempt=2, step=0)) == Reading(0.25)
    assert progress.read(entry(1001.0, attempt=2, step=1)) == Reading(0.5, 1.0, 2.0)


def test_a_restart_within_an_attempt_is_not_a_slow_report() -> None:
    progress = Progress({"steps": 10})
    for step in range(4):
        progress.read(entry(1.0 + step, step=step))
    progress.restart()
    assert progress.read(entry(500.0, step=2)) == Reading(0.3)
    assert progress.read(entry(501.0, step=3)) == Reading(0.4, 1.0, pytest.approx(6.0))


def test_a_config_with_a_nonsense_total_is_ignored() -> None:
    for total in (0, -1, "many", None):
        assert Progress({"epochs": total}).read(entry(1.0, epoch=1)).fraction is None


@pytest.mark.parametrize(("seconds", "words"), [(8.4, "8 s"), (89, "89 s"), (300, "5 min"), (12000, "3 h 20 min")])
def test_a_duration_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (entry(float("inf"), epoch=1), "20%"),
        (entry(float("nan"), epoch=1), "20%"),
        (entry(1e300, epoch=1), "20%"),
        (entry(-1e300, epoch=1), "20%"),
        (entry(110.0, progress=10**400), ""),
        (entry(110.0, progress=float("nan")), ""),
        (entry(110.0, epoch=10**400), ""),
    ],
)
def test_what_cannot_be_calculated_with_is_left_out(second: dict[str, Any], told: str) -> None:
    progress = Progress({"epochs": 10, "steps": 10**400})
    progress.read(entry(100.0, epoch=0))
    assert str(progress.read(second)).removesuffix(", 10 s/report").removesuffix("10 s/report") in (
        told,
        f"{told}, ETA 80 s",
    )
