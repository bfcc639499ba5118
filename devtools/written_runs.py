"""Run directories in every state, written by the project's own classes without a cluster."""

from __future__ import annotations

from collections.abc import Callable

from plugin_core import RunRef, TrainResult
from plugin_core.runs.directory import AttemptEnd, Heartbeat, RunDir
from plugin_core.runs.journal import JournalWriter
from plugin_core.specs import parse_spec
from plugin_core.storage.location import Location
from plugin_core.storage.threads import parallel

#: `raytrain` as from a shell: arguments → (exit code, stdout, stderr).
Raytrain = Callable[..., tuple[int, str, str]]
STATES = ("waiting", "training", "succeeded", "failed", "cancelled")


def write_run(storage: str, name: str, state: str = "succeeded", reports: int = 3, message: str = "it broke") -> RunDir:
    """A training of this name with `reports` reports. `state`: one of `STATES`, or "prepared" for one never
    submitted."""
    rundir = RunDir.at(Location.of(storage).child(name).uri)
    rundir.write_spec(parse_spec({"framework": "python", "train_loop_per_worker": "a:b"}).with_name(name, storage))
    if state == "prepared":
        return rundir
    rundir.claim(1, "http://127.0.0.1:1", "session")
    if state == "waiting":
        return rundir
    rundir.beat(1, Heartbeat(1, "training"))
    if reports:
        journal = JournalWriter(rundir, 1)
        for number in range(1, reports + 1):
            metrics = {"epoch": number - 1, "loss": 1 / number}
            journal.append({"report": number, "index": number, "metrics": metrics, "checkpoint": None})
        journal.close()
    if state == "succeeded":
        run = RunRef(uri=rundir.uri, name=name)
        rundir.write_result(TrainResult(run=run, metrics={"epoch": reports - 1}, reports=reports))
        rundir.record_end(1, AttemptEnd("succeeded"))
    elif state == "failed":
        rundir.record_end(1, AttemptEnd("user_error", message, f"Traceback of {name}"))
    elif state == "cancelled":
        rundir.cancel()
        rundir.record_end(1, AttemptEnd("cancelled", "the run was cancelled"))
    return rundir


def write_runs(storage: str, count: int) -> list[str]:
    """`count` trainings, from `run-000` on, most of them succeeded, as in a storage in use. Returns their states."""
    states = [STATES[number % 5] if number % 3 == 0 else "succeeded" for number in range(count)]
    parallel(lambda number: write_run(storage, f"run-{number:03}", states[number]), range(count))
    return states
