"""What the driver knows about the checkpoints on the nodes, kept in the key-value store of Ray's head."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError, StorageError
from plugin_core.specs import TrainSpec

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: Seconds for which Ray's head keeps the records of a run that nobody continues.
KEPT_S = 30 * 86_400
#: The variables that name the folder for temporary files, in the order of Python's `tempfile`.
TEMPORARY = ("TMPDIR", "TEMP", "TMP")


@dataclass(frozen=True)
class TierOptions:
    """What a worker needs to know. `key`: names the run and, by its suffix, the checkpoints that a `failure_policy` has
    not dropped. See `LocalTier` for the others."""

    key: str
    storage_every: int
    peer: bool
    folder: str | None


def tier_options(context: StepContext, dropped: int) -> TierOptions | None:
    """None without a local tier. `dropped`: how many checkpoints a `failure_policy` has dropped; the nodes keep what
    follows under another key. A later run of the same name has another key too. Raises StorageError."""
    assert isinstance(context.spec, TrainSpec)
    tier = context.spec.run_config.checkpoint_config.local_tier
    if tier is None:
        return None
    if not context.own_job:
        raise SpecError("run_config.checkpoint_config.local_tier: got it in a search; expected it in a training alone")
    file = context.rundir.step.child("tier")
    file.create(secrets.token_hex(16).encode())
    key = (file.read() or b"").decode(errors="replace")
    if not re.fullmatch("[0-9a-f]{32}", key):
        raise StorageError(f"{file.uri} is damaged; expected 32 hexadecimal digits")
    # the driver reads and removes there too, but has the variables of the job, not those of the workers alone
    workers = (context.spec.run_config.worker_runtime_env or {}).get("env_vars", {})
    folder = tier.folder or next((workers[name] for name in TEMPORARY if name in workers), None)
    return TierOptions(f"{key}-{dropped}", tier.storage_every, tier.peer, folder)


@dataclass
class Record:
    """A checkpoint that all ranks have kept. `index`: that of its report, see `journal_callback`. `ordinal`: counts
    checkpoints as `index` counts reports. `nodes`: for each rank that has a part, the nodes that have it. `metrics`:
    rank 0's. `digests`: rank → `Disk.digest`; workers that were lost may have left a part of the same name."""

    name: str
    index: int
    ordinal: int
    nodes: dict[int, list[str]]
    metrics: dict[str, Any] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Record:
        nodes = {int(rank): list(nodes) for rank, nodes in given["nodes"].items()}
        digests = {int(rank): digest for rank, digest in given.get("digests", {}).items()}
        return cls(given["name"], given["index"], given["ordinal"], nodes, given["metrics"], digests)


@dataclass(frozen=True)
class Plan:
    """What a worker group follows. `number`: the highest one in the names of this attempt's checkpoints so far.
    `ordinal`: that of the checkpoint that it resumes from, counted from the last one on storage. `resumes`: that
    checkpoint, if it is on the nodes. `peers`: node → the node that keeps a copy for it."""

    number: int = 0
    ordinal: int = 0
    resumes: Record | None = None
    peers: dict[str, str] = field(default_factory=dict)


def dump_plan(plan: Plan) -> bytes:
    return json.dumps(asdict(plan)).encode()


def dump_records(records: list[Record], lines: bytes = b"") -> bytes:
    """`lines`: those of the journal that may not be on storage yet."""
    return json.dumps({"records": [asdict(each) for each in records], "lines": lines.decode()}).encode()


def parse_records(data: bytes | None) -> tuple[list[Record], bytes]:
    given: dict[str, Any] = json.loads(data) if data else {"records": [], "lines": ""}
    return [Record.of(each) for each in given["records"]], given["lines"].encode()


def parse_plan(data: bytes) -> Plan:
    given = json.loads(data)
    resumes = Record.of(given["resumes"]) if given["resumes"] else None
    return Plan(given["number"], given["ordinal"], resumes, given["peers"])


def records_name(key: str) -> str:
    return f"raytrain-tier-{key}"


def plan_name(key: str) -> str:
    return f"raytrain-tier-{key}-plan"
