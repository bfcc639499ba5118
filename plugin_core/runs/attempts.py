"""The folder `.step/attempts/`: one listing of it tells a driver and an orchestrator all that may have changed.

    NNN.json                  receipt of attempt NNN, and fencing token    (orchestrator, create if absent)
    NNN.end.json              how it ended, and why                        (driver; create if absent)
    NNN.beat.json             a counter that moves, and the phase          (driver)
    NNN.links.json            where its trackers show it                   (driver)
    NNN.cancel.json           attempts up to NNN are to stop               (orchestrators, create if absent)
    NNN.cancel-ID.json        the whole run is, of which NNN was the newest attempt then   (the same)
    interest.json             a counter: somebody still waits              (orchestrators)

What is not wanted is told by names alone, each written once: of two who cancel, none writes over the other's. Whether a
heart beats, or somebody waits, is told by a version that is another one than before. Clocks are never compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from plugin_core.specs.references import safe_link
from plugin_core.storage.location import numbered

FOLDER = "attempts"
INTEREST = "interest.json"
_CANCEL = re.compile(r"(\d+)\.cancel(?:-([0-9a-f]+))?\.json")


@dataclass(frozen=True)
class Receipt:
    """Written before the submit: which Ray job an attempt is, and where. The highest one owns the run (the fence).

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
        """The job's page; "" where the receipt names none. `dashboard_url`: where a person reaches the dashboard, when that
        is not `address`."""
        return safe_link(f"{(dashboard_url or self.address).rstrip('/')}/#/jobs/{self.submission_id}")


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended: `outcome` is "succeeded" or that of an error class; `details` the whole traceback."""

    outcome: str
    message: str = ""
    details: str = ""
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class Heartbeat:
    """Of a driver that lives. `elapsed_s`: since its attempt began."""

    counter: int
    phase: str
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class Intent:
    """What is not wanted any more. A cancel is never taken back; it just does not hold for attempts that start later.

    `cancel_through`: attempts up to this one are to stop. `whole_run`: an id of each cancel of the whole run, which every
    call that followed the run at that time obeys too; `whole_through` is the newest attempt that any of them found.
    """

    cancel_through: int = 0
    whole_run: frozenset[str] = frozenset()
    whole_through: int = 0

    @classmethod
    def told_by(cls, names: Iterable[str]) -> Intent:
        """By the names in the folder."""
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
    """`.step/intent.json`, in which earlier versions kept it."""

    cancel_through: int = 0
    whole_run: str = ""
    whole_through: int = 0

    def as_now(self) -> Intent:
        return Intent(self.cancel_through, frozenset(filter(None, [self.whole_run])), self.whole_through)


@dataclass(frozen=True)
class Attempts:
    """The folder as it was listed: each file's name and version."""

    versions: dict[str, str] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The number of the newest attempt; 0: none."""
        return max(numbered(list(self.versions)), default=0)

    @property
    def intent(self) -> Intent:
        return Intent.told_by(self.versions)

    @property
    def interest(self) -> str:
        """Another one each time that somebody shows interest; "" where nobody did."""
        return self.versions.get(INTEREST, "")

    def of(self, attempt: int, what: str = "") -> str | None:
        """The version of an attempt's file, None where there is none: its receipt, or its "end", "beat" or "links"."""
        return self.versions.get(file_name(attempt, what))


def file_name(attempt: int, what: str = "") -> str:
    return f"{attempt:03}.{what}.json" if what else f"{attempt:03}.json"
