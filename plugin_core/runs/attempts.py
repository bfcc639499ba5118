"""The folder `.step/attempts/`: one listing tells a driver or orchestrator everything that may have changed.

    NNN.json                  receipt of attempt NNN, and fencing token    (orchestrator, create if absent)
    NNN.end.json              how it ended, and why                        (driver; create if absent)
    NNN.beat.json             heartbeat: a counter and the phase           (driver)
    NNN.links.json            links to its tracking runs                   (driver)
    NNN.phases.json           its phases so far, and when each began       (driver)
    NNN.cancel.json           cancels attempts up to NNN                   (orchestrators, create if absent)
    NNN.cancel-ID.json        cancels the whole run; NNN was the newest attempt   (orchestrators, create if absent)
    interest.json             a counter: somebody still waits              (orchestrators)

Cancels are encoded in file names, each written once, so concurrent cancels never overwrite each other. A heartbeat, or the
interest of an orchestrator, shows in a changed file version. Clocks are never compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge
from pydantic import StringConstraints

from plugin_core.specs.references import safe_link
from plugin_core.storage.location import numbered

FOLDER = "attempts"
INTEREST = "interest.json"
_CANCEL = re.compile(r"(\d+)\.cancel(?:-([0-9a-f]+))?\.json")
#: A journal segment's name, and a number of its lines (for a log: characters).
Segment = Annotated[str, StringConstraints(pattern=r"^\d{1,9}-\d{1,9}\.jsonl$")]
Lines = Annotated[int, Ge(0)]


@dataclass(frozen=True)
class Receipt:
    """Written before submission: an attempt's Ray job and cluster. The highest attempt owns the run (the fence).

    `cluster` is the cluster's identity (see `clusters.Cluster`), `incarnation` the session name of its head.
    """

    attempt: int
    submission_id: str
    nonce: str
    address: str
    incarnation: str
    generation: int = 1
    cluster: str = ""

    def job_url(self, dashboard_url: str = "") -> str:
        """The URL of the job's dashboard page, or "". `dashboard_url`: the dashboard's address for people, if it is not
        `address`."""
        return safe_link(f"{(dashboard_url or self.address).rstrip('/')}/#/jobs/{self.submission_id}")


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended: `outcome` is "succeeded" or that of an error class; `details` is the full traceback; `cause`:
    see `specs.failure_policy`, "" if unknown."""

    outcome: str
    message: str = ""
    details: str = ""
    elapsed_s: float = 0.0
    cause: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """Written by a live driver. `elapsed_s`: since the attempt started."""

    counter: int
    phase: str
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class Phase:
    """A phase that the driver entered at `time` (seconds since the epoch, by its clock). `shown`: whether a log shows
    it as a line; false for what only a timeline shows."""

    time: float
    phase: str
    shown: bool = True


@dataclass(frozen=True)
class Position:
    """A read position: lines of the journal's last segment, by its name; characters of each job's log, by the job; phases
    of each attempt's driver, by its number."""

    journal: dict[Segment, Lines] = field(default_factory=dict)
    logs: dict[str, Lines] = field(default_factory=dict)
    phases: dict[str, Lines] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """The last request for the run (see `generations`), and the request whose result was delivered; "" for none."""

    asked: str = ""
    delivered: str = ""


@dataclass(frozen=True)
class Intent:
    """The cancels of a run. A cancel is never withdrawn; it just does not apply to attempts that start later.

    `cancel_through`: attempts up to this one must stop. `whole_run`: the ids of cancels of the whole run, which also end
    every call that was following the run at the time; `whole_through` is the newest attempt that any of them saw.
    """

    cancel_through: int = 0
    whole_run: frozenset[str] = frozenset()
    whole_through: int = 0

    @classmethod
    def told_by(cls, names: Iterable[str]) -> Intent:
        """Parse the names in the folder."""
        found = [(int(match[1]), match[2]) for name in names if (match := _CANCEL.fullmatch(name))]
        whole = [(attempt, mark) for attempt, mark in found if mark]
        return cls(
            max((attempt for attempt, _ in found), default=0),
            frozenset(mark for _, mark in whole),
            max((attempt for attempt, _ in whole), default=0),
        )

    def __or__(self, other: Intent) -> Intent:
        return Intent(
            max(self.cancel_through, other.cancel_through),
            self.whole_run | other.whole_run,
            max(self.whole_through, other.whole_through),
        )


@dataclass(frozen=True)
class OldIntent:
    """`.step/intent.json`, as written by earlier versions."""

    cancel_through: int = 0
    whole_run: str = ""
    whole_through: int = 0

    def as_now(self) -> Intent:
        return Intent(self.cancel_through, frozenset(filter(None, [self.whole_run])), self.whole_through)


@dataclass(frozen=True)
class Attempts:
    """One listing of the folder: file name → version."""

    versions: dict[str, str] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The number of the newest attempt; 0 if there is none."""
        return max(numbered(list(self.versions)), default=0)

    @property
    def intent(self) -> Intent:
        return Intent.told_by(self.versions)

    @property
    def interest(self) -> str:
        """A version that changes whenever somebody shows interest; "" if nobody has."""
        return self.versions.get(INTEREST, "")

    def of(self, attempt: int, what: str = "") -> str | None:
        """The version of an attempt's receipt, or its "end", "beat" or "links" file; None if absent."""
        return self.versions.get(file_name(attempt, what))


def file_name(attempt: int, what: str = "") -> str:
    return f"{attempt:03}.{what}.json" if what else f"{attempt:03}.json"
