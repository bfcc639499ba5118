"""The run directory `<storage_path>/<name>/`: Ray's own files, with ours under `.step/`.

It holds the run's complete state, so a run can be inspected without its orchestrator or cluster:

    .step/spec.json, payload.pkl, code.zip   what runs                           (orchestrator)
    .step/request.json                       the engine's requests that it serves (orchestrator)
    .step/attempts/…                         each attempt's receipt, heartbeat and end; cancels (see `attempts`)
    .step/told/READER.json                   read positions in journal and log   (orchestrators)
    .step/journal/NNN-SSSSSSS.jsonl          every report                        (Ray Train controller)
    .step/logs/ATTEMPT/…                     what the driver and the workers printed   (they; see `kept_log`)
    .step/tier                               names the run's checkpoints on its nodes (driver; create if absent)
    .step/result.json                        the result, written last            (driver; create if absent)
    .step/pins/CHECKPOINT/…                  who else needs a checkpoint         (registries, child runs, other runs)
    .step/state/…, hangs/…, rehearsal/…, and others of one kind of step each: see the modules that name them
    _children/NAME/                          a child run: a trial of a search, or a part of a retraining. It has no
                                             attempts of its own: the outermost run's attempts are its fence.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import secrets
from dataclasses import asdict, replace
from typing import Any, TypeVar

from plugin_core.errors import REFUSED, PayloadError, SpecChangedError, SpecError, StorageError
from plugin_core.runs.attempts import FOLDER, INTEREST, Attempts, OldIntent, file_name
from plugin_core.runs.attempts import AttemptEnd as AttemptEnd
from plugin_core.runs.attempts import Heartbeat as Heartbeat
from plugin_core.runs.attempts import Intent as Intent
from plugin_core.runs.attempts import Phase as Phase
from plugin_core.runs.attempts import Position as Position
from plugin_core.runs.attempts import Receipt as Receipt
from plugin_core.runs.names import GENERATION
from plugin_core.runs.names import run_name as run_name
from plugin_core.runs.requests import Request as Request
from plugin_core.runs.spec_record import CODE_BYTES, changed_fields, code_alone, make_record
from plugin_core.specs import SCHEMA, StepSpec, parse_spec
from plugin_core.specs.functions import unpickle_functions
from plugin_core.specs.parse import parse_result
from plugin_core.specs.results import StepResult
from plugin_core.storage import ownership
from plugin_core.storage.location import RECORD_BYTES, Location, default_storage_path, numbered
from plugin_core.storage.stored_files import Object, Record, parse

T = TypeVar("T")
CHILDREN = "_children"
#: The files under `.step/` that define what runs.
CODE = ("spec.json", "payload.pkl", "code.zip")


class RunDir:
    """One run's directory. Every method is a short blocking read or write of storage."""

    def __init__(self, location: Location, generation: int = 1):
        self.location = location
        self.generation = generation
        self.step = location.child(".step")
        #: content that replaces the files of `CODE` (see `runs/code.py`)
        self.held: dict[str, bytes] | None = None
        #: cancels of the whole run from before the call that prepared it; None: unknown
        self.old_cancels: frozenset[str] | None = None
        self._attempts = self.step.child(FOLDER)

    @classmethod
    def of(cls, spec: StepSpec, generation: int = 1) -> RunDir:
        name = spec.run_config.name
        if not name:
            raise SpecError("run_config.name: missing; a retry resumes the run by this name")
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
        """The outermost run, which has the attempts; this run itself if it is not a child."""
        return RunDir.at(self.location.before(CHILDREN).uri)

    @property
    def is_outermost(self) -> bool:
        return self.outermost.uri == self.uri

    # ---- what runs

    def exists(self) -> bool:
        """Whether a run was ever requested here."""
        return self._read("spec.json") is not None

    def is_of(self, name: str) -> bool:
        """Whether this is a run of that name, in any generation."""
        found: Any = self._read_as(Object, "spec.json")
        for name_of in ("spec", "run_config", "name"):
            found = found.get(name_of) if isinstance(found, dict) else None
        return bool(found == name)

    def write_spec(self, spec: StepSpec, *, replace_code: bool = False) -> None:
        """Store the spec and its functions, or check that the stored spec is the same.

        `replace_code`: replace the stored code of the same functions if it has changed.
        Raises SpecChangedError naming the fields if the directory holds a different spec, PayloadError if a function cannot
        be pickled.
        """
        record, payload, sources = make_record(spec)
        self.check_owner()
        kept = self._read_as(Record, "spec.json")
        if kept is None and self.generation == 1 and GENERATION.search(self.name):
            raise SpecError(
                f"run_config.name: got {self.name!r}; expected a name without the suffix .gN, which counts a run's"
                " generations"
            )
        if kept is not None:
            changed = changed_fields(kept, record)
            alone = code_alone(kept, record)
            begun = self._has_begun()
            if begun and not changed and kept["payload"] == record["payload"] and kept.get("python") == record["python"]:
                # keep the code of a run that has started: a job may be about to read it
                payload = sources = b""
            if changed and not (replace_code and alone) and begun:
                names = ", ".join(changed)
                raise SpecChangedError(
                    f"run_config.name: got {self.name!r}, which is already used for a different spec at {self.uri}"
                    f" (different: {names}); expected the same spec, or another name",
                    tuple(changed),
                    alone,
                )
        if payload:
            self._write("payload.pkl", payload)
        if sources:
            self._write("code.zip", sources)
        self._write_json("spec.json", record)

    def check_owner(self) -> None:
        """Raise SpecError if this directory, or the code in it, belongs to another local user."""
        if self.location.is_local:
            ownership.check_run(self.location.path, [".step", *(f".step/{name}" for name in CODE)])

    def _has_begun(self) -> bool:
        """Whether any attempt ran or may have run."""
        if self.result() is not None:
            return True
        ends = [self.end(attempt) for attempt in self.receipts()]
        return any(end is None or end.outcome != REFUSED for end in ends)

    def write_child_spec(self, spec: StepSpec) -> None:
        """Store the spec of a child run, whose functions are the outer run's."""
        kind = spec.kind
        self._write_json("spec.json", {"schema": SCHEMA, "kind": kind, "spec": spec.to_json(), "payload": False})

    def read_record(self) -> Record:
        record = self._read_as(Record, "spec.json")
        if record is None:
            raise SpecError(f"run: got {self.uri!r}; expected a run directory (it has no .step/spec.json)")
        if record["schema"] > SCHEMA:
            raise SpecError(
                f"schema: got {record['schema']}; expected at most {SCHEMA}: upgrade ray-train-workflows to read it"
            )
        return record

    def read_spec(self) -> StepSpec:
        """The spec as data, with by-value functions as names."""
        return parse_spec(self.read_record()["spec"])

    def read_payload(self) -> dict[str, Any]:
        """The by-value functions. Raises PayloadError under a different Python minor version."""
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
        self._write_json("request.json", asdict(self.request().asked_by(request)))

    def deliver(self, request: str) -> None:
        """Record that the result was delivered for this request; the next new request starts a new generation."""
        self._write_json("request.json", asdict(replace(self.request().asked_by(request), delivered=request)))

    # ---- attempts

    def attempts(self) -> Attempts:
        """One listing of everything that may have changed."""
        return Attempts(self._attempts.versions())

    def receipts(self) -> list[int]:
        return numbered(self._attempts.names())

    def latest(self) -> int:
        """The number of the newest attempt; 0 if there is none."""
        return (self.receipts() or [0])[-1]

    def receipt_location(self, attempt: int) -> Location:
        return self._attempts.child(file_name(attempt))

    def receipt(self, attempt: int) -> Receipt | None:
        return self._read_as(Receipt, f"{FOLDER}/{file_name(attempt)}")

    def claim(self, attempt: int, address: str, incarnation: str, cluster: str = "") -> Receipt | None:
        """Claim attempt `attempt`; None if somebody else has it. Fences off all lower attempts."""
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
        """Record how an attempt ended; the first record wins."""
        self._attempts.child(file_name(attempt, "end")).create(_dump(asdict(end)))

    def end(self, attempt: int) -> AttemptEnd | None:
        return self._read_as(AttemptEnd, f"{FOLDER}/{file_name(attempt, 'end')}")

    # ---- intent, heartbeat, result

    def cancel(self, attempt: int | None = None) -> Intent:
        """Cancel the run, or its attempts up to `attempt`. The driver obeys even if no orchestrator is alive to stop the
        job."""
        what = "cancel" if attempt is not None else f"cancel-{secrets.token_hex(4)}"
        through = attempt if attempt is not None else self.latest()
        self._attempts.child(file_name(through, what)).create(b"{}")
        # an attempt claimed meanwhile belongs to the run that was cancelled
        while attempt is None and through < (through := self.latest()):
            self._attempts.child(file_name(through, what)).create(b"{}")
        return self.intent()

    def intent(self) -> Intent:
        return self.attempts().intent | self.old_intent()

    def old_intent(self) -> Intent:
        """Cancels recorded by earlier versions; no longer written."""
        return (self._read_as(OldIntent, "intent.json") or OldIntent()).as_now()

    def show_interest(self) -> None:
        """Signal that an orchestrator is waiting for the run; for `limits.orphan_timeout_s`."""
        self._write_json(f"{FOLDER}/{INTEREST}", {"counter": secrets.token_hex(4)})

    def position(self, reader: str) -> Position:
        return self._read_as(Position, f"told/{reader}.json") or Position()

    def keep_position(self, reader: str, position: Position) -> None:
        self._write_json(f"told/{reader}.json", asdict(position))

    def beat(self, attempt: int, heartbeat: Heartbeat) -> None:
        self._write_json(f"{FOLDER}/{file_name(attempt, 'beat')}", asdict(heartbeat))

    def heartbeat(self, attempt: int) -> Heartbeat | None:
        beat = self._read_as(Heartbeat, f"{FOLDER}/{file_name(attempt, 'beat')}")
        # the path in earlier versions
        return beat or self._read_as(Heartbeat, f"heartbeat/{file_name(attempt)}")

    def show_links(self, attempt: int, links: dict[str, str]) -> None:
        """Record the links to the attempt's tracking runs, by tracker."""
        self._write_json(f"{FOLDER}/{file_name(attempt, 'links')}", links)

    def links(self, attempt: int) -> dict[str, str]:
        return self._read_as(dict[str, str], f"{FOLDER}/{file_name(attempt, 'links')}") or {}

    def show_phases(self, attempt: int, phases: list[Phase]) -> None:
        """Record the phases that the attempt's driver entered."""
        data = json.dumps([asdict(phase) for phase in phases]).encode()
        self._attempts.child(file_name(attempt, "phases")).write(data)

    def phases(self, attempt: int) -> list[Phase]:
        """The attempt's phases; empty if the file is damaged, since they are for display only."""
        data = self._read(f"{FOLDER}/{file_name(attempt, 'phases')}")
        with contextlib.suppress(StorageError):
            return parse(list[Phase], data or b"[]", self.uri)
        return []

    def write_result(self, result: StepResult) -> StepResult:
        """Write the result if absent; returns the stored one, which may be another attempt's."""
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

    def _read(self, name: str) -> bytes | None:
        if self.held is not None and name in CODE:
            return self.held.get(name)
        return self.step.child(name).read(CODE_BYTES if name in CODE else RECORD_BYTES)

    def _write(self, name: str, data: bytes) -> None:
        self.step.child(name).write(data)

    def _read_as(self, kind: type[T], name: str) -> T | None:
        """None if absent. Raises StorageError if damaged."""
        data = self._read(name)
        return parse(kind, data, f"{self.uri}/.step/{name}") if data is not None else None

    def _write_json(self, name: str, data: dict[str, Any]) -> None:
        self._write(name, _dump(data))


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=1).encode()
