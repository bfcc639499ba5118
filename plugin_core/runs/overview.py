"""What each run of a storage is doing, in few requests: `raytrain ls` and `raytrain top`.

One listing of a run's own files tells what exists and when it was written; then a finished run takes one read, any
other at most three. Times are the storage's; they are compared with this machine's clock only for display.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plugin_core.errors import TERMINATED, RayTrainWorkflowsError, RestartError, from_outcome
from plugin_core.runs.attempts import FOLDER, Attempts, file_name
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.runs.history import COUNTERS
from plugin_core.runs.journal import index_of, last_report
from plugin_core.specs.json_values import is_count
from plugin_core.specs.references import REGISTRY_FOLDER
from plugin_core.storage.location import Location
from plugin_core.storage.threads import THREADS, parallel

#: Seconds without a heartbeat after which a run counts as silent. Drivers beat every two.
SILENT_S = 120.0
#: The same before the first heartbeat: a job may wait for its cluster for hours.
WAITING_S = 86400.0
#: The states of a run that is not active; any other state is "waiting", "cancelling" or the phase its driver reports.
OVER = ("succeeded", "failed", "cancelled", "silent", "unreadable", "no run")


@dataclass(frozen=True)
class Overview:
    """A run at a glance. `counters`: the last report's epoch, step or iteration. `began`: when its first attempt was
    submitted; `changed`: when any of its files was last written (both in seconds since the epoch, 0 if unknown)."""

    name: str
    uri: str
    state: str
    kind: str = ""
    attempt: int = 0
    reports: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    began: float = 0.0
    changed: float = 0.0
    outcome: str = ""
    message: str = ""

    @property
    def active(self) -> bool:
        return self.state not in OVER


def overviews(storage: Location, known: Mapping[str, Overview] | None = None) -> list[Overview]:
    """The runs in a storage, newest first; a run that cannot be read has the reason in its place. `known`: runs that
    need not be read again, by name. Raises StorageError if the storage itself cannot be listed."""
    names = [name for name in storage.folders() if name != REGISTRY_FOLDER]
    known = known or {}
    read = parallel(lambda name: known.get(name) or _in(storage, name), names, THREADS)
    return sorted(read, key=lambda run: (-(run.began or run.changed), run.name))


def _in(storage: Location, name: str) -> Overview:
    place = storage.child(name)
    try:
        return overview(RunDir.at(place.uri))
    except RayTrainWorkflowsError as exc:
        return Overview(name, place.uri, "unreadable", message=exc.message.replace(f"{place.uri}/", ""))


def overview(rundir: RunDir) -> Overview:
    """Raises StorageError or SpecError if the run's directory is damaged."""
    times = rundir.step.times()
    if "spec.json" not in times:
        return Overview(rundir.name, rundir.uri, "no run", message="a folder that is not a run of raytrain")
    first = times.get(f"{FOLDER}/{file_name(1)}", times["spec.json"])
    seen: dict[str, Any] = {"began": first, "changed": max(times.values())}
    result = rundir.result() if "result.json" in times else None
    if result is not None:
        seen |= {"kind": result.kind, "attempt": result.run.attempt, "state": "succeeded"}
        seen |= {"reports": getattr(result, "reports", 0), "counters": _counters(result.metrics)}
        return Overview(rundir.name, rundir.uri, **seen)
    attempts = Attempts({name.removeprefix(f"{FOLDER}/"): "" for name in times if name.startswith(f"{FOLDER}/")})
    end = rundir.end(attempts.latest) if attempts.of(attempts.latest, "end") is not None else None
    report = last_report(rundir, [name.removeprefix("journal/") for name in times if name.startswith("journal/")])
    seen |= {"kind": rundir.read_record()["kind"], "attempt": attempts.latest}
    if report is not None:
        seen |= {"reports": index_of(report), "counters": _counters(report["metrics"])}
    outcome = _outcome(attempts, end)
    if end is not None and outcome:
        state = "cancelled" if outcome == "cancelled" else "failed"
        return Overview(rundir.name, rundir.uri, state, outcome=outcome, message=end.message, **seen)
    return Overview(rundir.name, rundir.uri, _state(rundir, attempts, times), **seen)


def failure(rundir: RunDir) -> RayTrainWorkflowsError | None:
    """The error with which the last attempt of a run without a result ended; None if its end is unknown."""
    attempts = rundir.attempts()
    end = rundir.end(attempts.latest)
    outcome = _outcome(attempts, end)
    if end is not None and outcome:
        return from_outcome(outcome, end.message or f"the run ended: {outcome}", end.details, end.cause)
    return from_outcome("cancelled", "the run was cancelled") if overview(rundir).state == "cancelled" else None


def _outcome(attempts: Attempts, end: AttemptEnd | None) -> str:
    """How the last attempt failed; "" if it did not."""
    if end is None or end.outcome in ("succeeded", RestartError.outcome):  # another attempt is about to follow
        return ""
    if end.outcome == TERMINATED:
        return "cancelled" if attempts.latest <= attempts.intent.cancel_through else "infrastructure"
    return end.outcome


def _state(rundir: RunDir, attempts: Attempts, times: Mapping[str, float]) -> str:
    """The state of a run that recorded no end."""
    last = attempts.latest
    unwanted = last <= attempts.intent.cancel_through and bool(last or attempts.intent.whole_run)
    beat = times.get(f"{FOLDER}/{file_name(last, 'beat')}")
    quiet_s = time.time() - (beat or max(times.values()))
    if unwanted and (not last or quiet_s > SILENT_S):
        return "cancelled"
    if quiet_s > (WAITING_S if beat is None else SILENT_S):
        return "silent"
    if unwanted:
        return "cancelling"
    found = rundir.heartbeat(last) if beat is not None else None
    return found.phase if found else "waiting"


def _counters(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: metrics[name] for name in COUNTERS if is_count(metrics.get(name))}
