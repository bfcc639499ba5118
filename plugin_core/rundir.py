"""The run directory `<storage_path>/<name>/`: Ray's own files, and ours beside them under `.step/`.

Everything an outsider needs to know about a run is here, so that neither the orchestrator nor the cluster has to live:

    .step/spec.json, payload.pkl, code.zip   what runs                           (orchestrator)
    .step/request.json                       which request of an engine it serves (orchestrator)
    .step/attempts/NNN.json                  receipt and fencing token           (orchestrator, create if absent)
    .step/attempts/NNN.end.json              how that attempt ended, and why     (driver; create if absent)
    .step/intent.json                        what is not wanted any more         (orchestrators)
    .step/told/READER.json                   what was told of journal and log  (orchestrators)
    .step/interest.json                      a counter: somebody still waits     (orchestrators)
    .step/heartbeat/NNN.json                 a counter that moves, and the phase (driver)
    .step/journal/NNN-SSSS.jsonl             every report                        (Ray Train controller)
    .step/result.json                        the result, last                    (driver; create if absent)
    .step/pins/CHECKPOINT/…                  who else needs a checkpoint         (registries, child runs, other runs)
    _children/NAME/                          a run within this one: a trial of a search, a part of a retraining. It has no
                                             attempts of its own: those of the outermost run are its fence.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import secrets
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from plugin_core.errors import PayloadError, SpecChangedError, SpecError, StorageError
from plugin_core.functions import unpickle_functions
from plugin_core.record import changed_fields, code_alone, make_record
from plugin_core.results import AnyResult, parse_result
from plugin_core.specs import SCHEMA, StepSpec, parse_spec
from plugin_core.storage import Location, default_storage_path, numbered

T = TypeVar("T")
CHILDREN = "_children"


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
        """The job's page. `dashboard_url`: where a person reaches the dashboard, when that is not `address`."""
        return f"{(dashboard_url or self.address).rstrip('/')}/#/jobs/{self.submission_id}"


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended: `outcome` is "succeeded" or that of an error class; `details` the whole traceback."""

    outcome: str
    message: str = ""
    details: str = ""
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class Intent:
    """What is not wanted any more. A cancel is never taken back; it just does not hold for attempts that start later.

    `cancel_through`: attempts up to this one are to stop. `whole_run`: an id of the last cancel of the whole run, which
    every call that followed the run at that time obeys too; `whole_through` is the newest attempt that it found.
    """

    cancel_through: int = 0
    whole_run: str = ""
    whole_through: int = 0


@dataclass(frozen=True)
class Request:
    """Who asked for the run last (see `generations`), and the request whose answer was handed over; "" for none."""

    asked: str = ""
    delivered: str = ""


@dataclass(frozen=True)
class Position:
    """How far somebody has read: lines by the journal's segment, characters by the log's job."""

    journal: dict[str, int] = field(default_factory=dict)
    logs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Heartbeat:
    """`links`: where the run's trackers show it."""

    counter: int
    phase: str
    elapsed_s: float = 0.0
    links: dict[str, str] = field(default_factory=dict)


def run_name(*parts: str) -> str:
    """A run's name out of an engine's ids: safe for paths, equal for equal ids, long ones shortened with a hash."""
    given = [part for part in parts if part]
    joined = "--".join(given)
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", joined).lstrip(".-")
    # a part that holds the separator, or looks like a generation's ending, could be mistaken for another name
    if safe == joined and len(safe) <= 96 and joined.split("--") == given and not re.search(r"\.g\d+$", joined):
        return safe
    return f"{safe[:80]}-{hashlib.sha256(json.dumps(given).encode()).hexdigest()[:10]}"


class RunDir:
    """One run's directory. Every method is a short blocking read or write of storage."""

    def __init__(self, location: Location, generation: int = 1):
        self.location = location
        self.generation = generation
        self.step = location.child(".step")

    @classmethod
    def of(cls, spec: StepSpec, generation: int = 1) -> RunDir:
        name = spec.run_config.name
        if not name:
            raise SpecError("run_config.name: missing; a run needs a name, under which a retry resumes it")
        storage = Location.of(spec.run_config.storage_path or default_storage_path())
        return cls(storage.child(name if generation == 1 else f"{name}.g{generation}"), generation)

    @classmethod
    def at(cls, uri: str) -> RunDir:
        location = Location.of(uri, "run")
        match = re.search(r"\.g(\d+)$", location.name)
        return cls(location, int(match.group(1)) if match else 1)

    @property
    def uri(self) -> str:
        return self.location.uri

    @property
    def name(self) -> str:
        return self.location.name

    # ---- runs within runs

    def child(self, name: str) -> RunDir:
        return RunDir(self.location.child(CHILDREN, name))

    @property
    def outermost(self) -> RunDir:
        """The run that this one is within, and which has the attempts; itself where it is within none."""
        return RunDir.at(self.location.before(CHILDREN).uri)

    @property
    def is_outermost(self) -> bool:
        return self.outermost.uri == self.uri

    # ---- what runs

    def exists(self) -> bool:
        """Whether something was ever asked for under this name here."""
        return self._read("spec.json") is not None

    def write_spec(self, spec: StepSpec, *, replace_code: bool = False) -> None:
        """Keep the spec and its functions, or check that what is kept is the same.

        `replace_code`: another code behind the same functions is kept in the place of what was there.
        Raises SpecChangedError, naming the fields, where this run's directory stands for another spec; PayloadError
        where a function cannot be sent.
        """
        record, payload, sources = make_record(spec)
        kept = self._read_json("spec.json")
        if kept is not None:
            changed = changed_fields(kept, record)
            alone = code_alone(kept, record)
            if changed and not (replace_code and alone) and (self.receipts() or self.result() is not None):
                names = ", ".join(changed)
                raise SpecChangedError(
                    f"run_config.name: given {self.name!r}, which already stands for another spec at {self.uri} (different:"
                    f" {names}); accepted is the same spec, or another name",
                    tuple(changed),
                    alone,
                )
        if payload:
            self._write("payload.pkl", payload)
        if sources:
            self._write("code.zip", sources)
        self._write_json("spec.json", record)

    def write_child_spec(self, spec: StepSpec) -> None:
        """Keep the spec of a run within another one, whose functions are the outer one's."""
        kind = spec.kind  # type: ignore[attr-defined]
        self._write_json("spec.json", {"schema": SCHEMA, "kind": kind, "spec": spec.to_json(), "payload": False})

    def read_record(self) -> dict[str, Any]:
        record = self._read_json("spec.json")
        if record is None:
            raise SpecError(f"run: given {self.uri!r}; there is no run (no .step/spec.json)")
        if record["schema"] > SCHEMA:
            raise SpecError(
                f"schema: given {record['schema']}; accepted is up to {SCHEMA}: upgrade ray-train-workflows to read it"
            )
        return record

    def read_spec(self) -> StepSpec:
        """The spec as data; its by-value functions are names here."""
        return parse_spec(self.read_record()["spec"])

    def read_payload(self) -> dict[str, Any]:
        """The by-value functions, in the Python they were pickled for."""
        record = self.read_record()
        if not record["payload"]:
            return {}
        theirs, ours = record["python"], platform.python_version()
        if theirs.split(".")[:2] != ours.split(".")[:2]:
            raise PayloadError(
                f"python: the step's functions were sent from Python {theirs}, this cluster runs {ours}; accepted is the"
                " same minor version on both sides, or functions given as 'package.module:function'"
            )
        data = self._read("payload.pkl")
        if data is None:
            raise StorageError(f"{self.uri}: .step/payload.pkl is missing")
        return unpickle_functions(data)

    def read_sources(self) -> bytes | None:
        return self._read("code.zip") if self.read_record()["sources"] else None

    def request(self) -> Request:
        return self._read_as(Request, "request.json") or Request()

    def ask(self, request: str) -> None:
        self._write_json("request.json", asdict(replace(self.request(), asked=request)))

    def deliver(self, request: str) -> None:
        """The result was handed to whoever made this request; the next request begins a new generation."""
        self._write_json("request.json", asdict(Request(request, request)))

    # ---- attempts

    def receipts(self) -> list[int]:
        return numbered(self.step.child("attempts").names())

    def latest(self) -> int:
        """The number of the newest attempt; 0: none."""
        return (self.receipts() or [0])[-1]

    def receipt_location(self, attempt: int) -> Location:
        return self.step.child(f"attempts/{attempt:03}.json")

    def receipt(self, attempt: int) -> Receipt | None:
        return self._read_as(Receipt, f"attempts/{attempt:03}.json")

    def claim(self, attempt: int, address: str, incarnation: str, cluster: str = "") -> Receipt | None:
        """Take the right to be attempt `attempt`; None when somebody else has it. Every lower attempt is fenced by it."""
        run_hash = hashlib.sha256(self.uri.encode()).hexdigest()[:12]
        nonce = secrets.token_hex(4)
        receipt = Receipt(
            attempt=attempt,
            submission_id=f"rt-{run_hash}-g{self.generation}-a{attempt}-{nonce}",
            nonce=nonce,
            address=address,
            incarnation=incarnation,
            generation=self.generation,
            cluster=cluster,
        )
        return receipt if self.receipt_location(attempt).create(_dump(asdict(receipt))) else None

    def record_end(self, attempt: int, end: AttemptEnd) -> None:
        """Record how an attempt ended; the first record stays."""
        self.step.child(f"attempts/{attempt:03}.end.json").create(_dump(asdict(end)))

    def end(self, attempt: int) -> AttemptEnd | None:
        return self._read_as(AttemptEnd, f"attempts/{attempt:03}.end.json")

    # ---- intent, heartbeat, result

    def cancel(self, attempt: int | None = None) -> Intent:
        """Say that the run, or its attempts up to `attempt`, are to stop. The driver obeys it even when nobody lives to
        send a stop."""
        before = self.intent()
        if attempt is None:
            last = self.latest()
            intent = Intent(max(last, before.cancel_through), secrets.token_hex(4), last)
        else:
            intent = replace(before, cancel_through=max(attempt, before.cancel_through))
        self._write_json("intent.json", asdict(intent))
        return intent

    def intent(self) -> Intent:
        return self._read_as(Intent, "intent.json") or Intent()

    def show_interest(self) -> None:
        """A sign that an orchestrator waits for the run; for `limits.orphan_timeout_s`."""
        self._write_json("interest.json", {"counter": secrets.token_hex(4)})

    def interest(self) -> str:
        return str((self._read_json("interest.json") or {}).get("counter", ""))

    def position(self, reader: str) -> Position:
        return self._read_as(Position, f"told/{reader}.json") or Position()

    def keep_position(self, reader: str, position: Position) -> None:
        self._write_json(f"told/{reader}.json", asdict(position))

    def beat(self, attempt: int, heartbeat: Heartbeat) -> None:
        self._write_json(f"heartbeat/{attempt:03}.json", asdict(heartbeat))

    def heartbeat(self, attempt: int) -> Heartbeat | None:
        return self._read_as(Heartbeat, f"heartbeat/{attempt:03}.json")

    def write_result(self, result: AnyResult) -> AnyResult:
        """Write the result once; returns the one that is there, this one or that of another attempt."""
        self.step.child("result.json").create(_dump(result.to_json()))
        return self.result() or result

    def result(self) -> AnyResult | None:
        data = self._read_json("result.json")
        return parse_result(data) if data is not None else None

    # ---- small helpers

    def _read(self, name: str) -> bytes | None:
        return self.step.child(name).read()

    def _write(self, name: str, data: bytes) -> None:
        self.step.child(name).write(data)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        data = self._read(name)
        if data is None:
            return None
        try:
            loaded: dict[str, Any] = json.loads(data)
        except ValueError as exc:
            raise StorageError(f"{self.uri}/.step/{name} holds no JSON ({exc})") from exc
        return loaded

    def _read_as(self, kind: type[T], name: str) -> T | None:
        """A record from its JSON; fields that a later version added are passed over."""
        data = self._read_json(name)
        if not data:
            return None
        return kind(**{field.name: data[field.name] for field in fields(kind) if field.name in data})  # type: ignore[arg-type]

    def _write_json(self, name: str, data: dict[str, Any]) -> None:
        self._write(name, _dump(data))


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=1).encode()
