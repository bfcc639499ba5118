"""Admits steps to a cluster so that no two steps wait for resources that the other one holds.

Each step takes a ticket, a note on the cluster's head that all jobs there can read, and waits until all tickets before
its own are admitted and the admitted ones leave enough for its workers and the tasks that read their data. It then
writes down what it holds. Only the first in line can do so, which takes no lock; steps are served in order, so small
ones do not starve a large one. A ticket counts as long as Ray says that its job is alive.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from pydantic import Field
from typing_extensions import TypedDict

from plugin_core.driver.resources import in_limit, no_resources, too_late
from plugin_core.errors import StepTimeoutError, StorageError
from plugin_core.errors.plain_text import plain
from plugin_core.runs.context import StepContext
from plugin_core.specs.resources import in_words
from plugin_core.storage.stored_files import parse

#: Set in the jobs of a cluster to which nodes may be added later (`autoscaling`). No step is held back there: such a
#: cluster grows because steps wait for resources. The user declares it, as for the check before the submit: Ray's head
#: does not know about every autoscaler.
AUTOSCALING = "RAYTRAIN_AUTOSCALING"
#: Seconds between two looks at the tickets.
LOOK_S = 1.0
#: The most characters of a run's name in a message, and the most runs in one.
NAME_SHOWN, RUNS_SHOWN = 60, 5
#: A tolerance, since resources are sums of fractions.
_ROUNDING = 1e-6
_NAME = re.compile(r"(\d{6,15})-([0-9a-f]{8})-[0-9a-f]{8}")

logger = logging.getLogger("raytrain.driver")

Resources = dict[str, float]


class Note(TypedDict):
    """A ticket's content. `held`: what the step may take, once it is admitted."""

    run: str
    need: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    held: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None


class Board(Protocol):
    """The notes of all jobs of a cluster: `ray_internals.board`."""

    def read(self) -> dict[str, bytes]: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, name: str) -> None: ...
    def job(self) -> str: ...
    def live_jobs(self) -> set[str]: ...
    def in_worker(self) -> bool: ...
    def total(self) -> dict[str, float]: ...


@dataclass(frozen=True, order=True)
class Ticket:
    """Tickets sort by number, then by name if two drew the same number."""

    number: int
    name: str


@dataclass(frozen=True)
class Turn:
    """What a look found: once `admitted`, the `room` that the step may take (None: all); else what it `waits_for`."""

    admitted: bool
    room: Resources | None = None
    waits_for: str = ""
    ahead: str = ""


class Place:
    """A step's place among all steps that run, or want to run, on the cluster."""

    def __init__(self, board: Board, run: str, need: Resources, at_most: Resources):
        self._board = board
        self._note: Note = {"run": run[:1000], "need": _positive(need), "held": None}
        self._at_most = _positive(at_most)
        self._ticket: Ticket | None = None
        self._drawn = ""  # the ticket's name, set before it is on the board
        self._damaged: set[str] = set()

    def is_inside(self) -> bool:
        """Whether this process works for an admitted step, so that what it starts is part of that step."""
        job = self._board.job()
        return self._board.in_worker() and any(_job(ticket) == job for ticket in self._others())

    def look(self) -> Turn:
        """Take a ticket, unless there is one, and see whether it is this step's turn."""
        others = self._others() if self._ticket else self._take()
        ticket = self._ticket
        assert ticket is not None
        held = _sum(note["held"] for note in others.values() if note["held"])
        total, need = self._board.total(), self._note["need"]
        free = {name: amount - held.get(name, 0.0) for name, amount in total.items()}
        waiting = any(each < ticket and note["held"] is None for each, note in others.items())
        # a step that needs more than there is begins once nobody holds anything: then Ray says what is missing
        fits = not held or all(amount <= free.get(name, 0.0) + _ROUNDING for name, amount in need.items())
        if waiting or not fits:
            ahead = {each: note for each, note in others.items() if each < ticket or note["held"] is not None}
            runs = f"{len(ahead)} run{'s' if len(ahead) > 1 else ''} ahead"
            return Turn(False, waits_for=f"{_shown(need, total)}; {runs}", ahead=_named(ahead, total))
        takes = {name: min(amount, free.get(name, 0.0)) if held else amount for name, amount in self._at_most.items()}
        self._board.write(ticket.name, json.dumps({**self._note, "held": _positive(takes)}).encode())
        return Turn(True, free if held else None)

    def leave(self) -> None:
        if self._drawn:
            self._board.remove(self._drawn)
        self._drawn, self._ticket = "", None

    # ---- how

    def _take(self) -> dict[Ticket, Note]:
        """Take a ticket behind all others, and return those. If another step takes one at the same time, it sees this
        one, or this one sees it and goes behind it."""
        while True:
            self.leave()  # a ticket that was not the last, or that an interrupted look left
            number = max((ticket.number for ticket in self._others()), default=0) + 1
            self._drawn = f"{number:06d}-{self._board.job()}-{secrets.token_hex(4)}"
            self._board.write(self._drawn, json.dumps(self._note).encode())
            ticket, others = Ticket(number, self._drawn), self._others()
            if all(other < ticket for other in others):
                self._ticket = ticket
                return others

    def _others(self) -> dict[Ticket, Note]:
        """The other tickets whose jobs are alive; removes those of dead jobs."""
        notes = self._board.read()
        live = self._board.live_jobs()  # after the notes, so that nobody who wrote one is missing
        found = {}
        for name, data in notes.items():
            matched = None if name == self._drawn else _NAME.fullmatch(name)
            if matched and matched[2] not in live:
                self._board.remove(name)
            elif matched and (note := self._read(name, data)):
                found[Ticket(int(matched[1]), name)] = note
        return found

    def _read(self, name: str, data: bytes) -> Note | None:
        try:
            return parse(Note, data, f"the ticket {name}")
        except StorageError as exc:
            if name not in self._damaged:
                self._damaged.add(name)
                logger.warning("%s; it is not counted", exc.message)
            return None


@contextmanager
def admitted(context: StepContext) -> Iterator[StepContext]:
    """Wait until the cluster that this process is connected to has what the step needs; hold that until the step ends.

    Yields the step's context with its `room`. Raises StepTimeoutError after `limits.scheduling_timeout_s`. A killed process
    cannot give back what it holds: whoever looks next sees that its job is dead.
    """
    import ray

    if os.environ.get(AUTOSCALING) or not ray.is_initialized():
        yield context
        return
    from plugin_core.ray_internals import board, kv

    place = Place(board, context.rundir.name, context.spec.need(), context.spec.at_most())
    try:
        yield replace(context, room=wait(place, context, kv.ERRORS))
    finally:
        try:
            place.leave()
        except kv.ERRORS as exc:
            logger.warning("the head did not answer at the step's end (%s); its place is free when this process ends", exc)


def wait(place: Place, context: StepContext, errors: tuple[type[Exception], ...]) -> Resources | None:
    """Wait for the step's turn; returns its room. A head that does not answer (`errors`) is asked again."""
    started, limit, said = time.monotonic(), context.spec.limits.scheduling_timeout_s, ""
    while True:
        try:
            if not said and place.is_inside():
                return context.room
            turn = place.look()
            why = turn.waits_for
        except errors as exc:
            turn, why = None, f"an answer of the cluster's head ({exc})"
        if turn is not None and turn.admitted:
            if said:
                context.set_phase("starting")
                logger.info("admitted after %.0f s", time.monotonic() - started)
            return turn.room
        if why != said:
            said = why
            context.set_phase(f"waiting for {why}")
            logger.info("waiting for %s%s", why, f": {turn.ahead}" if turn else "")
        left = LOOK_S if limit is None else started + limit - time.monotonic()
        if left <= 0:
            raise _too_late(context, limit, turn, why)
        time.sleep(min(LOOK_S, left))


def _too_late(context: StepContext, limit: float | None, turn: Turn | None, why: str) -> StepTimeoutError:
    if turn is None:
        return too_late(f"the step did not begin within {in_limit(limit)}: it waits for {why}")
    return no_resources(limit, in_words(_positive(context.spec.need())), turn.ahead)


# ---- words and sums


def _job(ticket: Ticket) -> str:
    return ticket.name.split("-")[1]


def _positive(resources: Mapping[str, float]) -> Resources:
    return {name: amount for name, amount in resources.items() if amount > 0}


def _sum(all_held: Iterable[Resources]) -> Resources:
    total: Resources = {}
    for held in all_held:
        for name, amount in held.items():
            total[name] = total.get(name, 0.0) + amount
    return total


def _shown(resources: Resources, total: Resources) -> str:
    """The resources in words, at most what the cluster has."""
    return in_words({name: min(amount, total.get(name) or amount) for name, amount in resources.items()}) or "its turn"


def _named(ahead: Mapping[Ticket, Note], total: Resources) -> str:
    """The runs ahead, and what each has or wants. Any job on the cluster may have written their names."""
    words = []
    for _, note in sorted(ahead.items(), key=lambda each: each[0]):
        name = " ".join(plain(note["run"]).split())[:NAME_SHOWN]
        amounts = note["need"] if note["held"] is None else note["held"]
        known = {each: amount for each, amount in amounts.items() if each in total}
        words.append(f"{name} ({'waits for' if note['held'] is None else 'has'} {_shown(known, total)})")
    more = len(words) - RUNS_SHOWN
    return ", ".join(words[:RUNS_SHOWN]) + (f" and {more} more" if more > 0 else "")
