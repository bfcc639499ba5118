"""Where the time of a start went, from the driver's process to the first report, according to the attempt's records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from plugin_core.runs.directory import Phase, RunDir
from plugin_core.runs.journal import segment_name
from plugin_core.specs.json_values import is_time
from plugin_core.storage.stored_files import parse_line

#: What the driver records of its own process, in this order; `set_phase` adds what follows.
PYTHON, CONNECTING, STARTING = "starting Python and importing", "connecting to Ray", "starting"
#: A phase of a training's driver, a state of Ray Train's controller, or a moment of our callback → what begins with it.
_OF_A_TRAINING = {
    "training": "starting Ray Train's controller",
    "scheduling": "starting the workers' processes",
    "rescheduling": "starting the workers' processes",
    "setting_up": "setting up the workers",
    "looping": "the loop, until its first report",
}


@dataclass(frozen=True)
class Part:
    """`began`: seconds since the epoch, by the clock of the machine that recorded it. `seconds`: None while it lasts."""

    what: str
    began: float
    seconds: float | None


def timeline(rundir: RunDir, attempt: int, phases: Iterable[Phase] | None = None) -> list[Part]:
    """The parts of an attempt's start, in order. Empty for an attempt of an earlier version. `phases`: those of its
    driver, if that is this process."""
    known = rundir.outermost.phases(attempt) if phases is None else phases
    moments = [(phase.time, _OF_A_TRAINING.get(phase.phase, phase.phase)) for phase in known]
    end = None
    for entry in _first_entries(rundir, attempt):
        if "report" in entry:
            end = entry["time"]
            break
        if what := _OF_A_TRAINING.get(str(entry.get("phase"))):
            moments.append((entry["time"], what))
    # a step that reports nothing has started when its own work begins; what follows is not part of the start
    return _parts(sorted(moment for moment in moments if is_time(moment[0]) and (end is None or moment[0] <= end)), end)


def seconds(parts: Iterable[Part]) -> dict[str, float]:
    """What → its seconds, for the parts that have ended."""
    return {part.what: round(part.seconds, 2) for part in parts if part.seconds is not None}


def _parts(moments: list[tuple[float, str]], end: float | None) -> list[Part]:
    """The moments as parts; one that begins again right after itself continues."""
    merged: list[tuple[float, str]] = []
    for began, what in moments:
        if not merged or merged[-1][1] != what:
            merged.append((began, what))
    ends = [*(began for began, _ in merged), end][1:]
    return [
        Part(what, began, None if over is None else max(0.0, over - began))
        for (began, what), over in zip(merged, ends, strict=True)
    ]


def _first_entries(rundir: RunDir, attempt: int) -> Iterator[dict[str, Any]]:
    """The entries of the attempt's first segment: a start is at its beginning, however long the journal is."""
    data = rundir.step.child("journal", segment_name(attempt, 1)).read() or b""
    for line in data.splitlines():
        entry = parse_line(line)
        if entry is not None and is_time(entry.get("time")):
            yield entry
