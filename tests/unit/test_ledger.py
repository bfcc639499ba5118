"""Each second of a run is one of the ledger's kinds, over kills and attempts, however long the run is."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from devtools.written_runs import Raytrain
from plugin_core.runs import journal
from plugin_core.runs.attempts import FOLDER, AttemptEnd, Heartbeat, Phase, file_name
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalWriter
from plugin_core.runs.ledger import KINDS, Ledger, of_entry, rounded, stored
from plugin_core.runs.ledgers import ledger_before, ledger_of
from plugin_core.specs import parse_spec
from plugin_core.storage.location import Location

T = 1_790_000_000.0


class Written:
    """A run whose every moment the test sets, as a driver and a controller would record it; `trail` is what happened."""

    def __init__(self, storage: str, name: str = "run"):
        self.rundir = RunDir.at(Location.of(storage).child(name).uri)
        self.rundir.write_spec(parse_spec({"framework": "python", "train_loop_per_worker": "a:b"}).with_name(name, storage))
        self.now, self.attempt, self.reports, self.index = T, 0, 0, 0
        self.trail = dict.fromkeys(KINDS, 0.0)
        self.phases: list[Phase] = []

    def spend(self, kind: str, seconds: float) -> None:
        self.trail[kind] += seconds
        self.now += seconds

    def submit(self) -> None:
        self.attempt += 1
        self.rundir.claim(self.attempt, "http://127.0.0.1:1", "session")
        self.dated(file_name(self.attempt))
        self.phases = []

    def enter(self, *phases: str, shown: bool = True) -> None:
        self.phases += [Phase(self.now, phase, shown) for phase in phases]
        self.rundir.show_phases(self.attempt, self.phases)

    def train(self) -> None:
        self.enter("training")
        self.writer = JournalWriter(self.rundir, self.attempt, ledger_before(self.rundir, self.attempt, self.phases))
        self.say(phase="scheduling")

    def say(self, **entry: Any) -> None:
        self.writer.append({"time": self.now, **entry})

    def loop(self, workers: int = 2) -> None:
        self.say(phase="running", workers=workers, hosts=1)
        self.say(phase="looping")

    def report(self, index: int, blocked_s: float = 0.0, late: bool = False) -> None:
        self.reports += 1
        more: dict[str, Any] = {"blocked_s": blocked_s} if blocked_s else {}
        more |= {"late": True} if late else {}
        self.say(report=self.reports, index=index, metrics={"loss": 0.5}, checkpoint=None, **more)

    def end(self, outcome: str) -> None:
        self.rundir.record_end(self.attempt, AttemptEnd(outcome))
        self.dated(file_name(self.attempt, "end"))
        self.writer.close()

    def die(self) -> None:
        """The last heartbeat is what is known of the driver."""
        self.rundir.beat(self.attempt, Heartbeat(1, "training"))
        self.dated(file_name(self.attempt, "beat"))
        self.writer.close()

    def dated(self, name: str) -> None:
        os.utime(Path(self.rundir.location.path, ".step", FOLDER, name), (self.now, self.now))

    def ledger(self) -> dict[str, float]:
        return rounded(ledger_of(self.rundir))

    def happened(self) -> dict[str, float]:
        return {kind: round(took, 2) for kind, took in self.trail.items() if took}


@pytest.fixture
def run(storage: str) -> Written:
    return Written(storage)


def first_attempt(run: Written) -> None:
    run.submit()
    run.spend("queued", 5.0)  # the job is pending
    run.enter("starting Python and importing", shown=False)
    run.spend("starting", 2.0)
    run.enter("waiting for 2 more CPUs")
    run.spend("queued", 60.0)
    run.enter("starting")
    run.spend("starting", 1.0)
    run.enter("importing Ray Train and the framework", shown=False)
    run.spend("starting", 3.0)
    run.train()
    run.spend("starting", 4.0)
    run.loop()


def test_a_training_without_a_failure(run: Written) -> None:
    first_attempt(run)
    for index in range(1, 4):
        run.spend("checkpointing", 0.5)
        run.spend("useful", 10.0)
        run.report(index, blocked_s=0.5)
    run.spend("useful", 3.0)  # after the last report
    run.say(phase="finished")
    run.spend("idle", 1.0)
    run.end("succeeded")
    assert run.ledger() == run.happened()
    ledger = ledger_of(run.rundir)
    assert ledger.worker_s == 2 * (31.5 + 3.0 + 1.0), "until its workers started, it had none"
    assert ledger.lost_worker_s == 2 * (1.5 + 1.0)
    assert ledger.share_of("useful") == pytest.approx(33 / ledger.total)


def test_a_killed_worker_a_killed_driver_and_a_retry_hours_later(run: Written) -> None:
    first_attempt(run)
    for index in (1, 2, 3):
        run.spend("useful", 10.0)
        run.report(index)
    run.spend("repeated", 4.0)  # lost: no report has it
    run.say(phase="restarting", why="worker rank 1 was killed", failure=1, most=3)
    run.spend("recovering", 6.0)
    run.say(phase="scheduling")
    run.loop(workers=1)
    run.spend("repeated", 10.0)
    run.report(3)
    run.spend("useful", 10.0)
    run.report(4)
    run.spend("repeated", 1.5)
    run.die()
    run.spend("recovering", 3.0)  # until somebody noticed
    run.submit()
    run.spend("recovering", 2.0)
    run.enter("starting Python and importing", shown=False)
    run.enter("waiting for 1 more CPU")
    run.spend("queued", 7.0)
    run.enter("starting")
    run.train()
    run.report(5, late=True)  # the dead driver had it
    run.spend("recovering", 5.0)
    run.loop()
    run.spend("repeated", 2.0)
    run.say(phase="failed", why="the train function raised ValueError")
    run.spend("recovering", 1.0)
    run.end("user_error")
    run.spend("idle", 7200.0)
    run.submit()
    run.train()
    run.spend("recovering", 5.0)
    run.loop()
    run.spend("repeated", 10.0)
    run.report(5)
    run.spend("useful", 10.0)
    run.report(6)
    run.say(phase="finished")
    run.end("succeeded")
    assert run.ledger() == run.happened()


def test_a_run_that_goes_on_counts_until_now(run: Written) -> None:
    run.now = time.time() - 100
    first_attempt(run)
    run.spend("useful", 10.0)
    run.report(1)
    run.die()
    run.spend("useful", 15.0)
    assert run.ledger() == pytest.approx(run.happened(), abs=5.0)
    assert ledger_of(run.rundir).until == pytest.approx(time.time(), abs=5.0)


def dies_after_a_report(run: Written) -> None:
    first_attempt(run)
    run.spend("useful", 10.0)
    run.report(1)
    run.spend("repeated", 4.0)
    run.die()


def test_a_silent_run_counts_until_its_last_sign(run: Written) -> None:
    dies_after_a_report(run)
    assert run.ledger() == run.happened()


def test_an_end_that_was_recorded_a_day_after_the_last_sign_does_not_make_the_day_repeated_work(run: Written) -> None:
    dies_after_a_report(run)
    run.spend("idle", 86400.0)  # nobody followed the run
    run.end("infrastructure")
    run.submit()
    run.train()
    run.spend("recovering", 5.0)
    run.loop()
    run.spend("useful", 10.0)
    run.report(2)
    run.end("succeeded")
    assert run.ledger() == run.happened()


def test_what_hung_is_told_apart_from_the_work_before_it(run: Written) -> None:
    first_attempt(run)
    run.spend("useful", 10.0)
    run.report(1)
    run.spend("repeated", 3.0)
    run.spend("hanging", 300.0)
    run.say(phase="hanging", quiet_s=300.0)
    run.spend("recovering", 2.0)
    run.loop()
    run.spend("useful", 10.0)
    run.report(2)
    run.say(phase="finished")
    run.end("succeeded")
    assert run.ledger() == run.happened()


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_leave_no_gap_and_no_overlap(storage: str, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1500)
    monkeypatch.setattr(journal, "SEGMENT_MAX_BYTES", 1500)
    chance = random.Random(seed)
    run = Written(storage)
    first_attempt(run)
    at = kept = best = 0
    for _ in range(120):
        took = chance.uniform(0.5, 20.0)
        match chance.choices(["report", "worker", "driver", "retry"], [20, 2, 1, 1])[0]:
            case "report":
                at += 1
                blocked = chance.choice([0.0, 0.25])
                run.trail["checkpointing"] += blocked
                run.trail["useful" if at > best else "repeated"] += took - blocked
                run.now += took
                run.report(at, blocked_s=blocked)
                best, kept = max(best, at), at if blocked else kept
                continue
            case "worker":
                run.spend("repeated", took)
                run.say(phase="restarting", why="killed")
            case "driver":
                run.spend("repeated", took)
                run.die()
                run.spend("recovering", 2.0)
                run.submit()
                run.train()
            case "retry":
                run.spend("repeated", took)
                run.end("infrastructure")
                run.spend("idle", 30.0)
                run.submit()
                run.train()
        run.spend("recovering", took)
        run.loop()
        at = kept
    run.say(phase="finished")
    run.end("succeeded")
    ledger = ledger_of(run.rundir)
    assert rounded(ledger) == pytest.approx(run.happened(), abs=0.02)
    assert ledger.total == pytest.approx(ledger.until - ledger.began) == pytest.approx(run.now - T)
    # read whole, as a journal of an earlier version
    for file in Path(run.rundir.location.path, ".step", "journal").iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(line | {"ledger": None}) + "\n" for line in lines))
    assert rounded(ledger_of(run.rundir)) == pytest.approx(run.happened(), abs=0.02)


def test_a_run_of_many_reports_is_read_from_its_newest_segment(run: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    first_attempt(run)
    for index in range(1, 20_001):
        run.spend("useful", 1.0)
        run.report(index)
    run.say(phase="finished")
    run.end("succeeded")
    read: list[int] = []
    whole = Location.read
    monkeypatch.setattr(
        Location, "read", lambda self, *given, **named: (read.append(len(d := whole(self, *given, **named) or b"")), d)[1]
    )
    assert run.ledger() == run.happened()
    assert sum(read) < 2 * journal.SEGMENT_MAX_BYTES


@pytest.mark.parametrize(
    "broken",
    [
        {"began": "x"},
        {"began": -1.0},
        {"index": 10**400},
        {"seconds": {"fun": 1.0}},
        {"seconds": {"useful": float("inf")}},
        [],
    ],
)
def test_a_damaged_ledger_counts_as_none(broken: Any) -> None:
    good = stored(Ledger(began=T, until=T + 1, attempt=1))
    assert of_entry(good) is not None
    assert of_entry({"ledger": good["ledger"] | broken if isinstance(broken, dict) else broken}) is None


def test_times_that_are_none_move_nothing() -> None:
    ledger = Ledger().attempted(1, T).entry({"phase": "looping", "time": T + 1})
    for entry in ({"phase": "finished"}, {"phase": "finished", "time": "x"}, {"report": 1, "time": float("nan")}):
        assert ledger.entry(entry) == ledger
    back = ledger.entry({"report": 1, "metrics": {}, "time": T - 100, "blocked_s": -5})
    assert (back.until, back.total) == (T + 1, 1.0)


def test_raytrain_ledger_of_a_run_and_of_a_storage(storage: str, run: Written, raytrain: Raytrain) -> None:
    first_attempt(run)
    run.spend("useful", 3600.0)
    run.report(1)
    run.spend("repeated", 1800.0)
    run.say(phase="failed", why="x")
    run.end("user_error")
    code, out, _ = raytrain("ledger", "run", "--price", "2.5")
    assert code == 0
    assert out.splitlines()[0].split() == ["SECONDS", "SHARE"]
    assert [line.split()[-1] for line in out.splitlines()[1:-2]] == ["queued", "starting", "useful", "repeated"]
    assert out.splitlines()[-1] == "effective training time 65.8%; 1.00 worker hours lost, which cost 2.50 of 7.50"
    told = json.loads(raytrain("ledger", "run", "--json")[1])
    assert told["seconds"] == {"queued": 65.0, "starting": 10.0, "useful": 3600.0, "repeated": 1800.0}
    Written(storage, "other").submit()
    for arguments in ((storage,), ("--storage", storage), ()):
        code, out, _ = raytrain("ledger", *arguments)
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()] == ["RUN", "run", "other", "together", "effective"]
    told = json.loads(raytrain("ledger", storage, "--since", "3d", "--json")[1])
    assert list(told["runs"]) == []


def test_raytrain_ledger_refuses_what_is_no_time(storage: str, raytrain: Raytrain) -> None:
    code, _, err = raytrain("ledger", "--since", "yesterday")
    assert code == 2
    assert "--since: got 'yesterday'; expected a number and a unit, such as 90m, 12h, 7d or 4w" in err
