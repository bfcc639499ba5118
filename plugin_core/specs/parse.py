"""Parse specs and results from JSON, YAML or an engine user's input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs.base import refusing
from plugin_core.specs.load import load_file
from plugin_core.specs.results import SCHEMA, StepResult
from plugin_core.specs.step import StepSpec
from plugin_core.specs.step_kinds import step_kind


def parse_spec(data: Any) -> StepSpec:
    """A spec from JSON-like data; a spec is returned unchanged. Raises SpecError with one sentence per invalid field."""
    if isinstance(data, StepSpec):
        return data
    if not isinstance(data, dict):
        raise SpecError(f"spec: got {type(data).__name__}; expected a mapping of fields")
    return step_kind(data.get("kind", "train")).spec.model_validate(data)


def load_spec(path: str | Path) -> StepSpec:
    """A spec from a YAML or JSON file."""
    data = load_file(Path(path))
    if not isinstance(data, dict):
        raise SpecError(f"spec file: got {str(path)!r}; expected YAML or JSON with a mapping of fields")
    return parse_spec(data)


def as_spec(value: Any, accepted: type[StepSpec], folder: str | Path | None = None) -> StepSpec:
    """A spec from an engine user's input: a spec, a dict of its fields, or a YAML or JSON file (relative to `folder`).

    `accepted`: the expected kind, which a dict may omit. Raises SpecError.
    """
    if isinstance(value, (str, os.PathLike)):
        spec = load_spec(Path(folder or ".", value))
    elif isinstance(value, Mapping):
        kind = accepted.model_fields.get("kind")
        spec = parse_spec({**({"kind": kind.default} if kind else {}), **value})
    else:
        spec = parse_spec(value)
    if not isinstance(spec, accepted):
        raise SpecError(f"kind: got {spec.kind!r}; expected {accepted.__name__}")
    return spec


def parse_result(data: Any) -> StepResult:
    """A result from its JSON. Raises SpecError if it is invalid or newer than this code."""
    if isinstance(data, StepResult):
        return data
    try:
        kind = step_kind(data.get("kind") if isinstance(data, dict) else None).result
    except SpecError:
        raise SpecError(f"result: got {shown(data)}; expected the JSON of a step's result") from None
    version = data.get("schema_version", SCHEMA)
    if type(version) is not int or version > SCHEMA:
        raise SpecError(
            f"schema_version: got {shown(version)}; expected at most {SCHEMA}: upgrade ray-train-workflows to read the"
            " result"
        )
    try:
        result: StepResult = refusing(kind, kind.model_validate, data)
    except SpecError as exc:
        raise SpecError(f"result: {exc.message}") from None
    return result
