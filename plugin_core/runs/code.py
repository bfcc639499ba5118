"""What a job may run: the code of a run as it was when the job was submitted.

Its digest is an argument of the job, where nobody who can write to the run directory can change it. The driver compares
before it unpickles or imports anything, and uses what it compared.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from plugin_core.errors import InfrastructureError
from plugin_core.runs.directory import CODE, RunDir

SPEC, PAYLOAD, SOURCES = CODE
#: Fields that another call of the same step may change while the job waits to begin. Both sides of a submit, of whichever
#: versions, have to leave out the same: do not change these.
_FREE = frozenset({"limits", "tracking", "run_config", "report_all_ranks", "world_check"})


def digest(rundir: RunDir) -> str:
    """Of the run's code, for a submit. Raises SpecError where another user could have put it there."""
    rundir.check_owner()
    return _digest(_read(rundir))


def hold(rundir: RunDir, expected: str) -> None:
    """Let `directory` answer with the code that has this digest, whatever happens to its files from now on.

    Raises InfrastructureError where they have changed since the submit; "" expects nothing: an older orchestrator's job.
    """
    files = _read(rundir)
    if expected and _digest(files) != expected:
        raise InfrastructureError(
            f"{rundir.uri}: spec.json, payload.pkl or code.zip in .step/ is not what it was when this job was submitted"
        )
    rundir.held = files


def of_held(rundir: RunDir) -> str:
    """The digest of what a run directory holds; "" where it holds nothing."""
    return _digest(rundir.held) if rundir.held is not None else ""


def _read(rundir: RunDir) -> dict[str, bytes]:
    rundir.read_record()  # raises where there is none, or a damaged one
    files = {SPEC: rundir.step.child(SPEC).read() or b"{}"}
    record = json.loads(files[SPEC])
    for name, field in ((PAYLOAD, "payload"), (SOURCES, "sources")):
        if record.get(field):
            files[name] = rundir.step.child(name).read() or b""
    return files


def _digest(files: dict[str, bytes]) -> str:
    record = json.loads(files[SPEC])
    spec = record.get("spec", {})
    environment = (spec.get("run_config") or {}).get("worker_runtime_env")
    named = json.dumps([_fixed(spec), environment, record.get("code")], sort_keys=True)
    parts = [named.encode(), files.get(PAYLOAD, b""), files.get(SOURCES, b"")]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _fixed(spec: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in spec.items() if name not in _FREE}
    parts = {name: _fixed(kept[name]) for name in ("train", "evaluate") if isinstance(kept.get(name), dict)}
    return {**kept, **parts}
