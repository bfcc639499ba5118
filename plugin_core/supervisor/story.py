"""Turns a run's events into lines that people read. The only formatter: engines and the CLI just print its lines."""

from __future__ import annotations

import logging
import time
from typing import Any

from plugin_core.specs.outcomes import metrics as in_line
from plugin_core.supervisor import noise
from plugin_core.supervisor.events import Event, Line, Log

#: Seconds between two reports that are shown; the last one always is.
EVERY_S = 2.0


class Story:
    """A listener that writes lines, in the order and with the times of what happened.

    At most one report every `EVERY_S` becomes a line. One that comes sooner waits: the next one replaces it, unless
    something else happens first, or nothing happens for that long.
    """

    def __init__(self, log: Log):
        self._log = log
        self._filter = noise.Filter()
        self._job = ""
        self._waiting: Event | None = None
        self._since = 0.0
        self._shown = 0.0

    def __call__(self, event: Event) -> None:
        match event.kind:
            case "report":
                self._report(event)
            case "log":
                self._job_log(event)
            case "phase":
                if event.text:
                    self.flush()
                    self._tell(event)
            case "state":
                self._name_job(event)
                self._tell(event)
            case _:
                self.flush()
                self._tell(event)

    def pause(self) -> None:
        """All events so far have been passed on: a report that waited long enough is the last one so far."""
        if self._waiting is not None and time.monotonic() - self._since >= EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Show the waiting report, if there is one."""
        if self._waiting is not None:
            event, self._waiting = self._waiting, None
            self._shown = event.time
            self._tell(event)

    def _report(self, event: Event) -> None:
        if self._waiting is None:
            self._since = time.monotonic()
        self._waiting = event
        # another attempt's clock may be another machine's
        if abs(event.time - self._shown) >= EVERY_S:
            self.flush()

    def _name_job(self, event: Event) -> None:
        job = str(event.data.get("submission_id", ""))
        if job not in ("", self._job):
            self._job = job
            self._filter = noise.Filter()
            if job not in event.text:
                self._log(Line(f"attempt {event.data.get('attempt')} is job {job}", time=event.time))

    def _job_log(self, event: Event) -> None:
        lines = self._filter.kept(event.text.split("\n"))
        if lines:
            worst, level = noise.worst(lines)
            about = f": {worst}" if level > logging.INFO else ""
            title = f"the job's log, {len(lines)} line{'s' * (len(lines) > 1)}{about}"
            self._log(Line(title, level, event.time, tuple(lines)))

    def _tell(self, event: Event) -> None:
        for text in event.text.splitlines():
            self._log(Line(text, event.level, event.time))


#: States of Ray Train's controller that tell a person nothing: the lines around them do.
_SILENT = frozenset(
    {"initializing", "setting_up", "looping", "running", "shutting_down", "shuttingdown", "finished", "errored", "aborted"}
)
_PHASES = {
    "scheduling": "waiting for the workers",
    "rescheduling": "waiting for the workers",
    "resizing": "changing the number of workers",
    "preempting": "a node is about to be taken away",
}


def is_bad(entry: dict[str, Any]) -> bool:
    """Whether a journal entry about a phase is a warning."""
    return "why" in entry or "warning" in entry or entry.get("status", "validated") != "validated"


def phase_in_words(entry: dict[str, Any]) -> str:
    """What a journal entry about a phase says; "" if a person need not know."""
    phase = str(entry["phase"])
    if why := entry.get("why"):
        return _failure(entry, str(why))
    if phase == "validated":
        return _validation(entry)
    if phase == "resuming":
        return f"resuming from {entry['checkpoint']}{entry.get('counters', '')}, which the nodes kept"
    if phase == "stored":
        return f"{entry['checkpoint']} is on storage"
    if "warning" in entry:
        return str(entry["warning"])
    if "rows" in entry:
        return f"{phase}: {entry['rows']} rows so far"
    if "workers" in entry:
        many, hosts = entry["workers"], entry.get("hosts", 1)
        on = f" on {hosts} nodes" if hosts > 1 else ""
        return f"{many} worker{'s' * (many != 1)} started{on}"
    return "" if phase in _SILENT else _PHASES.get(phase, phase.replace("_", " "))


def _validation(entry: dict[str, Any]) -> str:
    name, status = entry.get("checkpoint"), entry.get("status")
    if status == "validated":
        return f"validated {name}: {in_line(entry.get('metrics', {}))}"
    return f"the validation of {name} " + ("took longer than validation.timeout_s" if status == "timed_out" else "failed")


def _failure(entry: dict[str, Any], why: str) -> str:
    # the line about a policy names the cause anyway
    if (cause := entry.get("cause", "user_code")) != "user_code" and "failure_policy" not in why:
        why = f"{why} (cause: {cause})"
    if "failure" not in entry or entry["phase"] == "failed":
        return why
    most = entry.get("most", -1)
    count = f"failure {entry['failure']}" + (f" of {most}" if most >= 0 else "")
    resumes = f"resuming from {entry['from']}" if entry.get("from") else "starting over, as there is no checkpoint yet"
    return f"{why}; {count}; {resumes}"


def report_in_words(entry: dict[str, Any], reading: object) -> str:
    metrics = {name: value for name, value in entry["metrics"].items() if name != "progress"}
    if "trials" in entry:
        trials = f"{metrics.pop('trials_over', 0)} of {entry['trials']} trials done"
        return f"trial {metrics.pop('trial', '?')}: {in_line(metrics)}; {trials}"
    text = f"report {entry['report']}: {in_line(metrics)}" + (f" ({reading})" if str(reading) else "")
    return f"{text}; {entry['checkpoint']} is kept" if entry.get("checkpoint") else text
