"""The ledger of a run that is killed, beside what its loop itself wrote down."""

import itertools
import random
import time
from pathlib import Path

import pytest

from devtools.chaos import Running, Trail, drivers, kill, spec_at, wait_until
from plugin_core import LocalCluster
from plugin_core.runs.ledger import rounded
from plugin_core.runs.ledgers import ledger_of


@pytest.mark.slow
def test_the_ledger_of_a_run_with_kills_is_what_its_loop_saw(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    """A worker or the driver is killed, three times, by a seeded schedule, while both workers are held between two steps:
    loop and journal agree on which steps were reported."""
    draw = random.Random(25)
    schedule = list(itertools.accumulate((draw.randint(4, 7) for _ in range(3)), initial=4))[1:]
    killed = [draw.choice(("worker", "driver")) for _ in schedule]
    trail.hold(schedule[0])
    called = time.time()
    running = Running(spec_at(tmp_path, trail.file, loop={"steps": 30, "step_s": 0.5, "report_all": True}), cluster)
    for number, (at, after_it) in enumerate(itertools.pairwise([*schedule, 30])):
        trail.wait_for(at)
        wait_until(lambda at=at: any(entry["metrics"]["step"] == at - 1 for entry in running.reports()))
        kill(drivers(running.rundir.uri)[0] if killed[number] == "driver" else trail.entries(rank=1)[-1]["pid"])
        trail.wait_for_process(number + 2)
        trail.hold(after_it)
    trail.release()
    result = running.result()
    returned = time.time()
    assert set(killed) == {"worker", "driver"}
    assert result.run.attempt == 1 + killed.count("driver")

    entries, done = trail.entries(), set[int]()
    useful = repeated = between = 0.0
    for one, after in itertools.pairwise(entries):
        took = after["time"] - one["time"]
        if one["pid"] != after["pid"]:
            between += took
        elif one["step"] in done:
            repeated += took
        else:
            useful += took
            done.add(one["step"])
    ended = Trail(Path(f"{trail.file}.ended")).entries()[-1]["time"]
    useful += ended - entries[-1]["time"]
    ledger = ledger_of(running.rundir)
    seconds = {**dict.fromkeys(("starting", "queued", "recovering", "repeated", "checkpointing"), 0.0), **ledger.seconds}
    submitted = next(event.time for event in running.events if event.text.startswith("attempt 1 is job"))
    assert called <= ledger.began <= submitted
    assert ended <= ledger.until <= returned
    # the loop's clock has no report's blocked time apart
    assert seconds["useful"] + seconds["checkpointing"] == pytest.approx(useful, abs=2.0)
    assert seconds["repeated"] + seconds["recovering"] + seconds["queued"] == pytest.approx(repeated + between, abs=4.0)
    # a later attempt may queue too, behind what its dead predecessor held
    assert seconds["starting"] <= entries[0]["time"] - ledger.began + 1.0
    assert 0 < seconds["checkpointing"] < useful
    assert ledger.workers == 2
    assert 0.05 < ledger.share_of("useful") < 0.95
    # the result was written a moment before the attempt's end was
    assert {**result.ledger, "idle": 0.0} == {**rounded(ledger), "idle": 0.0}
    assert any(text.startswith("trained: ") and "\neffective training time: " in text for text in running.texts("outcome"))
