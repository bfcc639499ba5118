"""Estimates a training's progress and remaining time from the journal's reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plugin_core.runs.history import COUNTERS
from plugin_core.specs.json_values import is_count, is_time

#: The rate is averaged over this many reports: it follows a change, but one slow report hardly affects it.
WINDOW = 20


@dataclass(frozen=True)
class Reading:
    """`fraction` done, 0 to 1; `per_s`: reports per second; `eta_s`: seconds until the end. None: unknown."""

    fraction: float | None = None
    per_s: float | None = None
    eta_s: float | None = None

    def __str__(self) -> str:
        words = []
        if self.fraction is not None:
            words.append(f"{self.fraction:.0%}")
        if self.per_s is not None:
            words.append(f"{self.per_s:.2g} reports/s" if self.per_s >= 1 else f"{1 / self.per_s:.2g} s/report")
        if self.eta_s is not None:
            words.append(f"ETA {duration(self.eta_s)}")
        return ", ".join(words)


@dataclass
class Progress:
    """Reads the journal's entries in order.

    The fraction is a report's own `progress` (0 to 1), or one of its counters (`epoch`, `step`, `iteration`, from 0)
    divided by the total in the loop's config. The rate is measured over the last reports of one attempt, by the clock of
    the machine that wrote them.
    """

    config: dict[str, Any] = field(default_factory=dict)
    _window: deque[tuple[float, float | None]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _attempt: int = 0

    def read(self, entry: dict[str, Any]) -> Reading:
        """Return the reading after this report."""
        if entry.get("attempt", 0) != self._attempt:
            self._attempt = entry.get("attempt", 0)
            self.restart()
        fraction = self._fraction(entry)
        if not is_time(entry["time"]):
            return Reading(fraction)
        self._window.append((entry["time"], fraction))
        began, first_fraction = self._window[0]
        elapsed = entry["time"] - began
        if elapsed <= 0:
            return Reading(fraction)
        per_s = (len(self._window) - 1) / elapsed
        eta_s = None
        if fraction is not None and first_fraction is not None and fraction > first_fraction:
            eta_s = (1 - fraction) * elapsed / (fraction - first_fraction)
        return Reading(fraction, per_s, eta_s)

    def restart(self) -> None:
        """The workers start again: the rate counts neither the pause nor the repeated steps."""
        self._window.clear()

    def _fraction(self, entry: dict[str, Any]) -> float | None:
        metrics = entry["metrics"]
        if is_count(metrics.get("progress")):
            return min(max(float(metrics["progress"]), 0.0), 1.0)
        for counter, totals in COUNTERS.items():
            total = next((self.config[name] for name in totals if is_count(self.config.get(name))), None)
            if total and total > 0 and is_count(metrics.get(counter)):
                return float(min((metrics[counter] + 1) / total, 1.0))
        return None


def duration(seconds: float) -> str:
    """Format a duration for people: 45 s, 12 min, 3 h 20 min."""
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def effective_time(seconds: Mapping[str, float]) -> str:
    """The useful share of a run's time, and its parts. `seconds`: per kind, as in its ledger."""
    total = sum(seconds.values())
    parts = ", ".join(
        f"{kind} {duration(took)}" for kind, took in sorted(seconds.items(), key=lambda each: -each[1]) if round(took)
    )
    return f"{seconds.get('useful', 0.0) / total if total else 0.0:.1%} of {duration(total)}" + (
        f" ({parts})" if parts else ""
    )
