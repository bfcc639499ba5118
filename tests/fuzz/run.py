"""Runs cases in processes of their own, whose time and memory are bounded."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from types import FrameType

from tests.fuzz.case import Case, Refused, verdict

#: Of the processor, for one case; what waits without computing has to be over in WALL_S.
CASE_S, WALL_S = 2.0, 30.0
#: To import what a way in needs, which is not part of a case, takes long on a busy machine.
WARM_S = 300.0
#: What a case may allocate beside what its process has already.
CASE_BYTES = 2 << 30


#: What a process says of itself between the outcomes.
WARMING, BEGINS = "warming", "begins"


class Hang(BaseException):
    pass


@dataclass
class Tally:
    refused: int = 0
    accepted: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    foreign: int = 0
    hangs: int = 0
    wrong: int = 0
    right_refused: int = 0

    def add(self, case: Case, outcome: str, text: str) -> None:
        if outcome == "hang":
            self.hangs += 1
        problem = verdict(case, outcome, text)
        if problem:
            self.failures.append(f"{case.way}: {case.name}: {problem[:300]}")
            self.foreign += outcome == "foreign"
            self.wrong += outcome == "accepted"
            self.right_refused += outcome == "refused"
        elif outcome == "refused":
            self.refused += 1
        else:
            self.accepted += 1
            self.reasons[case.reason] = self.reasons.get(case.reason, 0) + 1

    @property
    def cases(self) -> int:
        return self.refused + self.accepted + len(self.failures)

    def __str__(self) -> str:
        return (
            f"{self.cases} cases: {self.refused} refused naming the field, {self.accepted} accepted on purpose,"
            f" {self.foreign} foreign exceptions, {self.hangs} hangs, {self.wrong} wrong inputs accepted,"
            f" {self.right_refused} refused without need or name"
        )


def run(cases: Sequence[Case], processes: int = 2) -> Tally:
    """Each process takes every n-th case; one that hangs for good is killed and the next one goes on behind the case."""
    tally = Tally()
    context = multiprocessing.get_context("fork")
    shares = [list(range(start, len(cases), processes)) for start in range(processes)]
    workers = {}

    def start(share: list[int]) -> None:
        if share:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(cases, share, theirs), daemon=True)
            process.start()
            theirs.close()
            workers[ours] = (process, share, time.monotonic() + WARM_S)

    for share in shares:
        start(share)
    while workers:
        ready = wait(list(workers), timeout=1.0)
        for pipe, (process, share, until) in list(workers.items()):
            if pipe in ready:
                try:
                    number, outcome, text = pipe.recv()
                except EOFError:  # it died: of the case that it was at
                    number, outcome, text = share[0], "foreign", f"the process ended with {process.exitcode}"
                    process.join(5)
                if outcome in (WARMING, BEGINS):
                    longest = WARM_S if outcome == WARMING else WALL_S
                    workers[pipe] = (process, share, time.monotonic() + longest)
                    continue
                tally.add(cases[number], outcome, text)
                left = share[share.index(number) + 1 :]
                if process.is_alive() and left:
                    workers[pipe] = (process, left, time.monotonic() + WARM_S)
                    continue
                del workers[pipe]
                pipe.close()
                process.join(5)
                start(left)
            elif time.monotonic() > until:
                process.kill()
                process.join()
                del workers[pipe]
                tally.add(cases[share[0]], "hang", f"no end after {WALL_S:.0f} s")
                start(share[1:])
    return tally


def _work(cases: Sequence[Case], share: list[int], pipe: Connection) -> None:
    _die_with_parent()
    signal.signal(signal.SIGPROF, _out_of_time)
    logging.disable(logging.CRITICAL)
    ready: set[str] = set()
    for number in share:
        case = cases[number]
        if case.way not in ready:  # what the first one imports is not part of the case
            ready.add(case.way)
            pipe.send((number, WARMING, ""))
            _limit(resource.RLIM_INFINITY)
            outcome(replace(case, run=case.warm or case.run), limited=False)
        _limit(_used() + CASE_BYTES)
        pipe.send((number, BEGINS, ""))
        pipe.send((number, *outcome(case)))
    pipe.close()


def outcome(case: Case, limited: bool = True) -> tuple[str, str]:
    """The outcome of a case, in this process."""
    if limited:
        signal.setitimer(signal.ITIMER_PROF, CASE_S)
    try:
        case.run()
    except Refused as exc:
        return "refused", str(exc)
    except Hang:
        return "hang", f"more than {CASE_S:.0f} s"
    except BaseException as exc:  # whatever it is, it is not ours
        return "foreign", f"{type(exc).__name__}: {exc!s:.200}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "accepted", ""


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise Hang


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _limit(size: int) -> None:
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _used() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
