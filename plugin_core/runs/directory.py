"""The run directory `<storage_path>/<name>/`: Ray's own files, and ours beside them under `.step/`.

Everything an outsider needs to know about a run is here, so that neither the orchestrator nor the cluster has to live:

    .step/spec.json, payload.pkl, code.zip   what runs                           (orchestrator)
    .step/request.json                       which request of an engine it serves (orchestrator)
    .step/attempts/…                         each attempt's receipt, heartbeat and end; cancels (see `attempts`)
    .step/told/READER.json                   what was told of journal and log  (orchestrators)
    .step/journal/NNN-SSSSSSS.jsonl          every report                        (Ray Train controller)
    .step/result.json                        the result, last                    (driver; create if absent)
    .step/pins/CHECKPOINT/…                  who else needs a checkpoint         (registries, child runs, other runs)
    _children/NAME/                          a run within this one: a trial of a search, a part of a retraining. It has no
                                             attempts of its own: those of the outermost run are its fence.
"""

from __future__ import annotations

import hashlib
import json
import platform
import secrets
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, TypeVar

from annotated_types import Ge
from pydantic import StringConstraints

from plugin_core.errors import REFUSED, PayloadError, SpecChangedError, SpecError, StorageError
from plugin_core.runs.attempts import FOLDER, INTEREST, Attempts, OldIntent, file_name
from plugin_core.runs.attempts import AttemptEnd as AttemptEnd
from plugin_core.runs.attempts import Heartbeat as Heartbeat
from plugin_core.runs.attempts import Intent as Intent
from plugin_core.runs.attempts import Receipt as Receipt
from plugin_core.runs.names import GENERATION
from plugin_core.runs.names import run_name as run_name
from plugin_core.runs.spec_record import changed_fields, code_alone, make_record
from plugin_core.specs import SCHEMA, StepSpec, parse_spec
from plugin_core.specs.functions import unpickle_functions
from plugin_core.specs.parse import parse_result
from plugin_core.specs.results import StepResult
from plugin_core.storage import ownership
from plugin_core.storage.location import Location, default_storage_path, numbered
from plugin_core.storage.stored_files import Object, Record, parse

T = TypeVar("T")
CHILDREN = "_children"
#: The files under `.step/` that say what runs.
CODE = ("spec.json", "payload.pkl", "code.zip")
#: No record of ours, results with their slices included, comes near so many bytes; an orchestrator reads no more.
RECORD_BYTES = 64 * 2**20
#: A journal's file, and how many of its lines (of a log, characters).
Segment = Annotated[str, StringConstraints(pattern=r"^\d{1,9}-\d{1,9}\.jsonl$")]
Lines = Annotated[int, Ge(0)]


@dataclass(frozen=True)
class Request:
    """Who asked for the run last (see `generations`), and the request whose answer was handed over; "" for none."""

    asked: str = ""
    delivered: str = ""


@dataclass(frozen=True)
class Position:
    """How far somebody has read: lines of the journal's last segment by its name, characters by the log's job."""

    journal: dict[Segment, Lines] = field(default_factory=dict)
    logs: dict[str, Lines] = field(default_factory=dict)


class RunDir:
    """One run's directory. Every method is a short blocking read or write of storage."""

    def __init__(self, location: Location, generation: int = 1):
        self.location = location
        self.generation = generation
        self.step = location.child(".step")
        #: what this object answers with instead of the files of `CODE` (see `runs/code.py`)
        self.held: dict[str, bytes] | None = None
        self._attempts = self.step.child(FOLDER)

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
        match = GENERATION.search(location.name)
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

    def is_of(self, name: str) -> bool:
        """Whether what lies here is the run of that name, in whichever generation."""
        found: Any = self._read_as(Object, "spec.json")
        for name_of in ("spec", "run_config", "name"):
            found = found.get(name_of) if isinstance(found, dict) else None
        return bool(found == name)

    def write_spec(self, spec: StepSpec, *, replace_code: bool = False) -> None:
        """Keep the spec and its functions, or check that what is kept is the same.

        `replace_code`: another code behind the same functions is kept in the place of what was there.
        Raises SpecChangedError, naming the fields, where this run's directory stands for another spec; PayloadError
        where a function cannot be sent.
        """
        record, payload, sources = make_record(spec)
        self.check_owner()
        kept = self._read_as(Record, "spec.json")
        if kept is None and self.generation == 1 and GENERATION.search(self.name):
            raise SpecError(
                f"run_config.name: got {self.name!r}; expected a name without .gN at its end, which counts the generations"
                " of a run"
            )
        if kept is not None:
            changed = changed_fields(kept, record)
            alone = code_alone(kept, record)
            begun = self._has_begun()
            if begun and not changed and kept["payload"] == record["payload"] and kept.get("python") == record["python"]:
                # the code of a run that began stays as it is: a job of it may be about to read it
                payload = sources = b""
            if changed and not (replace_code and alone) and begun:
                names = ", ".join(changed)
                raise SpecChangedError(
                    f"run_config.name: got {self.name!r}, which already stands for another spec at {self.uri} (different:"
                    f" {names}); expected the same spec, or another name",
                    tuple(changed),
                    alone,
                )
        if payload:
            self._write("payload.pkl", payload)
        if sources:
            self._write("code.zip", sources)
        self._write_json("spec.json", record)

    def check_owner(self) -> None:
        """Raise SpecError where this directory, or the code in it, belongs to another local user."""
        if self.location.is_local:
            ownership.check_run(self.location.path, [".step", *(f".step/{name}" for name in CODE)])

    def _has_begun(self) -> bool:
        """Whether some of it ran, or may have."""
        if self.result() is not None:
            return True
        ends = [self.end(attempt) for attempt in self.receipts()]
        return any(end is None or end.outcome != REFUSED for end in ends)

    def write_child_spec(self, spec: StepSpec) -> None:
        """Keep the spec of a run within another one, whose functions are the outer one's."""
        kind = spec.kind
        self._write_json("spec.json", {"schema": SCHEMA, "kind": kind, "spec": spec.to_json(), "payload": False})

    def read_record(self) -> Record:
        record = self._read_as(Record, "spec.json")
        if record is None:
            raise SpecError(f"run: got {self.uri!r}; there is no run (no .step/spec.json)")
        if record["schema"] > SCHEMA:
            raise SpecError(
                f"schema: got {record['schema']}; expected up to {SCHEMA}: upgrade ray-train-workflows to read it"
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
                f"python: the step's functions were sent from Python {theirs}, this cluster runs {ours}; expected the"
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

    def attempts(self) -> Attempts:
        """What may have changed, by one listing."""
        return Attempts(self._attempts.versions())

    def receipts(self) -> list[int]:
        return numbered(self._attempts.names())

    def latest(self) -> int:
        """The number of the newest attempt; 0: none."""
        return (self.receipts() or [0])[-1]

    def receipt_location(self, attempt: int) -> Location:
        return self._attempts.child(file_name(attempt))

    def receipt(self, attempt: int) -> Receipt | None:
        return self._read_as(Receipt, f"{FOLDER}/{file_name(attempt)}")

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
        self._attempts.child(file_name(attempt, "end")).create(_dump(asdict(end)))

    def end(self, attempt: int) -> AttemptEnd | None:
        return self._read_as(AttemptEnd, f"{FOLDER}/{file_name(attempt, 'end')}")

    # ---- intent, heartbeat, result

    def cancel(self, attempt: int | None = None) -> Intent:
        """Say that the run, or its attempts up to `attempt`, are to stop. The driver obeys it even when nobody lives to
        send a stop."""
        if attempt is None:
            name = file_name(self.latest(), f"cancel-{secrets.token_hex(4)}")
        else:
            name = file_name(attempt, "cancel")
        self._attempts.child(name).create(b"{}")
        return self.intent()

    def intent(self) -> Intent:
        return self.attempts().intent | self.old_intent()

    def old_intent(self) -> Intent:
        """What an earlier version was told; nothing is added to it any more."""
        return (self._read_as(OldIntent, "intent.json") or OldIntent()).as_now()

    def show_interest(self) -> None:
        """A sign that an orchestrator waits for the run; for `limits.orphan_timeout_s`."""
        self._write_json(f"{FOLDER}/{INTEREST}", {"counter": secrets.token_hex(4)})

    def position(self, reader: str) -> Position:
        return self._read_as(Position, f"told/{reader}.json") or Position()

    def keep_position(self, reader: str, position: Position) -> None:
        self._write_json(f"told/{reader}.json", asdict(position))

    def beat(self, attempt: int, heartbeat: Heartbeat) -> None:
        self._write_json(f"{FOLDER}/{file_name(attempt, 'beat')}", asdict(heartbeat))

    def heartbeat(self, attempt: int) -> Heartbeat | None:
        beat = self._read_as(Heartbeat, f"{FOLDER}/{file_name(attempt, 'beat')}")
        # where earlier versions kept it
        return beat or self._read_as(Heartbeat, f"heartbeat/{file_name(attempt)}")

    def show_links(self, attempt: int, links: dict[str, str]) -> None:
        """Where the attempt's trackers show the run, by tracker."""
        self._write_json(f"{FOLDER}/{file_name(attempt, 'links')}", links)

    def links(self, attempt: int) -> dict[str, str]:
        return self._read_as(dict[str, str], f"{FOLDER}/{file_name(attempt, 'links')}") or {}

    def write_result(self, result: StepResult) -> StepResult:
        """Write the result once; returns the one that is there, this one or that of another attempt."""
        self.step.child("result.json").create(_dump(result.to_json()))
        return self.result() or result

    def has_result(self) -> bool:
        return self.step.child("result.json").is_file()

    def result(self) -> StepResult | None:
        data = self._read_as(Object, "result.json")
        try:
            return parse_result(data) if data is not None else None
        except SpecError as exc:
            raise SpecError(f"{self.uri}/.step/result.json: {exc.message}") from None

    # ---- small helpers

    def _read(self, name: str, at_most: int | None = None) -> bytes | None:
        if self.held is not None and name in CODE:
            return self.held.get(name)
        return self.step.child(name).read(at_most)

    def _write(self, name: str, data: bytes) -> None:
        self.step.child(name).write(data)

    def _read_as(self, kind: type[T], name: str) -> T | None:
        """None where there is none; StorageError where it is damaged."""
        data = self._read(name, RECORD_BYTES)
        return parse(kind, data, f"{self.uri}/.step/{name}") if data is not None else None

    def _write_json(self, name: str, data: dict[str, Any]) -> None:
        self._write(name, _dump(data))


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=1).encode()
