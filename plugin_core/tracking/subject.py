"""The tracked run, with its parameters and tags in a form that every tracker accepts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plugin_core.errors import StorageError
from plugin_core.runs.dataset_fingerprint import dataset_fingerprint, fingerprint_of_all
from plugin_core.runs.directory import RunDir
from plugin_core.runs.pins import home_of
from plugin_core.specs import StepSpec
from plugin_core.specs.json_values import flat
from plugin_core.storage.stored_files import Object, parse

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: File under `.step/` that says which engine task a run belongs to.
ORIGIN = ("tracking", "origin.json")
#: Spec fields that do not affect what is trained.
_LEFT_OUT = frozenset({"tracking", "limits", "runtime_env", "run_config", "schema_version"})


@dataclass(frozen=True)
class Subject:
    """`params`: the flattened spec; `tags`: the run's origin; `parent`: the run this one belongs to (for a trial, its
    search; for an evaluation, the training whose checkpoint it evaluates)."""

    rundir: RunDir
    kind: str
    attempt: int
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    parent: RunDir | None = None

    @classmethod
    def of(cls, context: StepContext) -> Subject:
        rundir, kind = context.rundir, str(context.spec.kind)
        origin = _read(rundir.outermost, ORIGIN)
        tags = {"raytrain.run": rundir.uri, "raytrain.kind": kind, "raytrain.attempt": str(context.attempt)}
        tags |= {f"raytrain.{name}": str(value) for name, value in origin.items()}
        return cls(rundir, kind, context.attempt, _params(context.spec), tags, _parent(context))

    @property
    def name(self) -> str:
        return self.rundir.name

    @property
    def key(self) -> str:
        """The run's id, 64 hexadecimal digits, for trackers that accept one."""
        return hashlib.sha256(self.rundir.uri.encode()).hexdigest()

    def load(self, tracker: str) -> dict[str, Any]:
        """Return the stored state of the tracking run."""
        return _read(self.rundir, ("tracking", f"{tracker}.json"))

    def keep(self, tracker: str, state: dict[str, Any]) -> dict[str, Any]:
        """Store the state for the next attempt, unless another process did first; return what is stored."""
        self.rundir.step.child("tracking", f"{tracker}.json").create(json.dumps(state).encode())
        return self.load(tracker)

    def parents(self, tracker: str) -> dict[str, Any]:
        """Return the stored state of the parent's tracking run."""
        return _read(self.parent, ("tracking", f"{tracker}.json")) if self.parent is not None else {}


def _read(rundir: RunDir, place: tuple[str, str]) -> dict[str, Any]:
    file = rundir.step.child(*place)
    return parse(Object, file.read() or b"{}", file.uri)


def _params(spec: Any) -> dict[str, Any]:
    """The loop's config under its own keys, the rest of the spec under its field names."""
    fields = _computed(spec)
    config = fields.pop("train_loop_config", {})
    params = {**flat(fields), **(flat(config) if config else {})}
    try:
        fingerprint = _dataset_fingerprint(spec)
    except StorageError:
        return params  # the step reads the data too, and raises a better error
    return params if fingerprint is None else {**params, "dataset_fingerprint": fingerprint}


def _computed(spec: Any) -> dict[str, Any]:
    """The fields that affect what is computed, including those of the steps nested in a search or a retraining."""
    parts = {name: _computed(part) for name, part in spec if isinstance(part, StepSpec)}
    fields = {**spec.to_json(), **parts}
    return {name: value for name, value in fields.items() if name not in _LEFT_OUT and value not in (None, {}, [])}


def _dataset_fingerprint(spec: Any) -> str | None:
    """The same fingerprint as in the step's result."""
    if (dataset := getattr(spec, "dataset", None)) is not None:
        return dataset_fingerprint(dataset)
    return fingerprint_of_all(getattr(spec, "datasets", {}))


def _parent(context: StepContext) -> RunDir | None:
    rundir = context.rundir
    if (checkpoint := getattr(context.spec, "checkpoint", None)) is not None and (home := home_of(checkpoint.uri)):
        return home
    return None if rundir.is_outermost else rundir.outermost
