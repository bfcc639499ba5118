"""The run directory `<storage_path>/<name>/`: Ray's own files, and ours beside them under `.step/`.

Everything an outsider needs to know about a run is here, so that neither the orchestrator nor the cluster has to live:

    .step/spec.json, payload.pkl, code.zip   what runs                           (orchestrator)
    .step/attempts/NNN.json                  receipt and fencing token           (orchestrator, create if absent)
    .step/attempts/NNN.end.json              how that attempt ended, and why     (driver)
    .step/intent.json                        what is wanted: run or cancel       (orchestrators)
    .step/heartbeat/NNN.json                 a counter that moves, and the phase (driver)
    .step/journal/NNN-SSSS.jsonl             every report                        (Ray Train controller)
    .step/result.json                        the result, last                    (driver)
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from plugin_core import functions
from plugin_core.errors import PayloadError, SpecChangedError, SpecError, StorageError
from plugin_core.results import AnyResult, parse_result
from plugin_core.specs import KINDS, SCHEMA, DatasetConfig, StepSpec, parse_spec
from plugin_core.storage import Location, default_storage_path

#: Fields that do not change what is computed: how long to wait and how often to try. A retry may change them.
OPERATIONAL = ("limits", "run_config.failure_config", "run_config.storage_path", "run_config.name")


@dataclass(frozen=True)
class Receipt:
    """Written before the submit: which Ray job an attempt is, and where. The highest one owns the run (the fence)."""

    attempt: int
    submission_id: str
    nonce: str
    address: str
    incarnation: str
    generation: int = 1


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended: `outcome` is "succeeded" or that of an error class; `details` the whole traceback."""

    outcome: str
    message: str = ""
    details: str = ""
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class Heartbeat:
    counter: int
    phase: str
    elapsed_s: float = 0.0


def run_name(*parts: str) -> str:
    """A run's name out of an engine's ids: safe for paths, equal for equal ids, long ones shortened with a hash."""
    joined = "--".join(part for part in parts if part)
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", joined).lstrip(".-")
    if safe == joined and len(safe) <= 96:
        return safe
    return f"{safe[:80]}-{hashlib.sha256(joined.encode()).hexdigest()[:10]}"


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

    # ---- what runs

    def write_spec(self, spec: StepSpec) -> None:
        """Keep the spec and its functions, or check that what is kept is the same.

        Raises SpecChangedError, naming the fields, where this run's directory stands for another spec; PayloadError
        where a function cannot be sent.
        """
        by_value, references = spec_functions(spec)
        payload = functions.pickle_functions(by_value) if by_value else b""
        sources = functions.local_sources([*by_value.values(), *references.values()])
        record = {
            "schema": SCHEMA,
            "kind": spec.kind,  # type: ignore[attr-defined]
            "spec": spec.to_json(),
            "code": functions.sources_digest(sources),
            "python": platform.python_version(),
            "payload": bool(payload),
            "sources": bool(sources),
        }
        kept = self._read_json("spec.json")
        if kept is not None:
            changed = changed_fields(kept, record)
            if changed and (self.receipts() or self.result() is not None):
                names = ", ".join(changed)
                raise SpecChangedError(
                    f"run_config.name: given {self.name!r}, which already stands for another spec at {self.uri} (different:"
                    f" {names}); accepted is the same spec, or another name",
                    tuple(changed),
                )
        if payload:
            self._write("payload.pkl", payload)
        if sources:
            self._write("code.zip", functions.pack(sources))
        self._write_json("spec.json", record)

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
        return functions.unpickle_functions(data)

    def read_sources(self) -> bytes | None:
        return self._read("code.zip") if self.read_record()["sources"] else None

    # ---- attempts

    def receipts(self) -> list[int]:
        names = self.step.child("attempts").names()
        return sorted(int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name))

    def receipt(self, attempt: int) -> Receipt | None:
        data = self._read_json(f"attempts/{attempt:03}.json")
        return Receipt(**data) if data else None

    def claim(self, attempt: int, address: str, incarnation: str) -> Receipt | None:
        """Take the right to be attempt `attempt`; None when somebody else has it."""
        run_hash = hashlib.sha256(self.uri.encode()).hexdigest()[:12]
        nonce = secrets.token_hex(4)
        receipt = Receipt(
            attempt=attempt,
            submission_id=f"rt-{run_hash}-g{self.generation}-a{attempt}-{nonce}",
            nonce=nonce,
            address=address,
            incarnation=incarnation,
            generation=self.generation,
        )
        created = self.step.child(f"attempts/{attempt:03}.json").create(_dump(asdict(receipt)))
        return receipt if created else None

    def record_end(self, attempt: int, end: AttemptEnd) -> None:
        self._write_json(f"attempts/{attempt:03}.end.json", asdict(end))

    def end(self, attempt: int) -> AttemptEnd | None:
        data = self._read_json(f"attempts/{attempt:03}.end.json")
        return AttemptEnd(**data) if data else None

    # ---- intent, heartbeat, result

    def want(self, wanted: str) -> None:
        """Say what is wanted: "run" or "cancel". The driver obeys it even when nobody lives to send a stop."""
        self._write_json("intent.json", {"want": wanted})

    def wanted(self) -> str:
        return str((self._read_json("intent.json") or {}).get("want", "run"))

    def beat(self, attempt: int, heartbeat: Heartbeat) -> None:
        self._write_json(f"heartbeat/{attempt:03}.json", asdict(heartbeat))

    def heartbeat(self, attempt: int) -> Heartbeat | None:
        data = self._read_json(f"heartbeat/{attempt:03}.json")
        return Heartbeat(**data) if data else None

    def write_result(self, result: AnyResult) -> None:
        self._write_json("result.json", result.to_json())

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

    def _write_json(self, name: str, data: dict[str, Any]) -> None:
        self._write(name, _dump(data))


def spec_functions(spec: StepSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec's functions by field name: those by value, those by reference."""
    by_value: dict[str, Any] = {}
    references: dict[str, str] = {}

    def note(field: str, value: Any) -> None:
        if isinstance(value, str):
            if not functions.is_by_value(value):
                references[field] = value
        elif callable(value):
            by_value[field] = value

    for field in ("train_loop_per_worker", "evaluate", "predictor"):
        note(field, getattr(spec, field, None))
    for field, dataset in spec_datasets(spec).items():
        note(f"{field}.function", dataset.function)
    return by_value, references


def spec_datasets(spec: StepSpec) -> dict[str, DatasetConfig]:
    """The spec's datasets by field name."""
    datasets = {f"datasets.{name}": config for name, config in getattr(spec, "datasets", {}).items()}
    if getattr(spec, "dataset", None) is not None:
        datasets["dataset"] = spec.dataset  # type: ignore[attr-defined]
    return datasets


def changed_fields(kept: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """The fields, dotted, in which two spec records differ in what they compute."""
    ours, theirs = _flat(record["spec"]), _flat(kept["spec"])
    names = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    changed = sorted(name for name in names if not any(name == op or name.startswith(op + ".") for op in OPERATIONAL))
    if kept["code"] != record["code"]:
        changed.append("the modules that travel with the step")
    return changed


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{prefix}.{key}" if prefix else key).items()}
    return {prefix: value}


def _dump(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=1).encode()


__all__ = ["KINDS", "AttemptEnd", "Heartbeat", "Receipt", "RunDir", "run_name"]
