"""Pin a run's code to its state at submission.

The code's digest is a job argument, which nobody with write access to the run directory can change. The driver verifies it
before it unpickles or imports anything, and uses the verified bytes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from plugin_core.errors import InfrastructureError
from plugin_core.runs.directory import CODE, RunDir
from plugin_core.runs.spec_record import CODE_BYTES

SPEC, PAYLOAD, SOURCES = CODE
#: Fields that another call of the same step may change while the job is pending. Both sides of a submission, of any
#: versions, must exclude the same fields: do not change these.
_FREE = frozenset({"limits", "tracking", "run_config", "report_all_ranks", "world_check"})
#: All fields that another call may change by now. A driver of an earlier version knows only the digest without `_FREE`, its
#: argument. So the digest without these is passed as an environment variable, which such a driver ignores.
_FREE_NOW = _FREE | {"hang_detection", "failure_policy"}
VARIABLE = "RAYTRAIN_CODE"


def digests(rundir: RunDir) -> tuple[str, str]:
    """The digests of the run's code, for submission: the driver's argument, and its `VARIABLE`. Raises SpecError if another
    user may have written it."""
    rundir.check_owner()
    return _digests(_read(rundir))


def hold(rundir: RunDir, expected: str) -> None:
    """Keep the code with this digest in memory, so that `directory` returns it even if the files change later.

    Raises InfrastructureError if they changed since submission. "" skips the check: the job of an older orchestrator.
    """
    files = _read(rundir)
    if expected and expected not in _digests(files):
        raise InfrastructureError(
            f"{rundir.uri}: spec.json, payload.pkl or code.zip in .step/ has changed since this job was submitted"
        )
    rundir.held = files


def of_held(rundir: RunDir) -> str:
    """The digest of the code that `hold` keeps; "" if there is none."""
    return _digests(rundir.held)[1] if rundir.held is not None else ""


def _read(rundir: RunDir) -> dict[str, bytes]:
    rundir.read_record()  # raises if missing or damaged
    files = {SPEC: rundir.step.child(SPEC).read() or b"{}"}
    record = json.loads(files[SPEC])
    for name, field in ((PAYLOAD, "payload"), (SOURCES, "sources")):
        if record.get(field):
            files[name] = rundir.step.child(name).read(CODE_BYTES) or b""
    return files


def _digests(files: dict[str, bytes]) -> tuple[str, str]:
    """Without the fields of `_FREE`, and without those of `_FREE_NOW`."""
    record = json.loads(files[SPEC])
    spec = record.get("spec", {})
    environment = (spec.get("run_config") or {}).get("worker_runtime_env")
    functions = b"".join(hashlib.sha256(files.get(name, b"")).digest() for name in (PAYLOAD, SOURCES))

    def digest(free: frozenset[str]) -> str:
        named = json.dumps([_fixed(spec, free), environment, record.get("code")], sort_keys=True)
        return hashlib.sha256(hashlib.sha256(named.encode()).digest() + functions).hexdigest()

    return digest(_FREE), digest(_FREE_NOW)


def _fixed(spec: dict[str, Any], free: frozenset[str]) -> dict[str, Any]:
    kept = {name: value for name, value in spec.items() if name not in free}
    parts = {name: _fixed(kept[name], free) for name in ("train", "evaluate") if isinstance(kept.get(name), dict)}
    return {**kept, **parts}
