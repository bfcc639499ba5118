"""The record in `.step/spec.json`, and the fields in which two records differ."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Any

from plugin_core.errors import PayloadError, SpecError
from plugin_core.specs import SCHEMA, StepSpec, functions, parse_spec, sources
from plugin_core.specs.code_digest import sources_digest
from plugin_core.specs.json_values import flat
from plugin_core.specs.parts import is_name_of_value, spec_functions
from plugin_core.specs.working_folders import uploaded_folders

#: Fields that do not affect what is computed, such as timeouts and retry counts. A retry may change them.
OPERATIONAL = (
    "limits",
    "run_config.failure_config",
    "run_config.checkpoint_config.local_tier",
    "run_config.storage_path",
    "run_config.name",
    "tracking",
    "report_all_ranks",
    "world_check",
    "hang_detection",
    "failure_policy",
)
MODULES = "the modules that travel with the step"
#: The most bytes of the pickled functions, and of the packed modules.
CODE_BYTES = 2**30


def make_record(spec: StepSpec) -> tuple[dict[str, Any], bytes, bytes]:
    """The record, the pickled by-value functions and the packed modules (the last two may be empty). Raises PayloadError if
    a function cannot be pickled, or is too large."""
    by_value, references = spec_functions(spec)
    payload = functions.pickle_functions(by_value) if by_value else b""
    if len(payload) > CODE_BYTES:
        raise PayloadError(
            f"{', '.join(by_value)}: got {len(payload):,} bytes of functions and what they capture; expected at most"
            f" {CODE_BYTES:,}: read large data inside the function"
        )
    uploaded, _ = uploaded_folders(spec.runtime_env)
    modules = sources.local_sources([*by_value.values(), *references.values()], uploaded)
    record = {
        "schema": SCHEMA,
        "kind": spec.kind,
        "spec": spec.to_json(),
        "code": sources_digest(modules),
        "python": platform.python_version(),
        "payload": bool(payload),
        "sources": bool(modules),
    }
    return record, payload, sources.pack(modules) if modules else b""


def changed_fields(kept: Mapping[str, Any], record: dict[str, Any]) -> list[str]:
    """The dotted names of the fields in which two spec records differ, except operational ones."""
    ours, theirs = flat(record["spec"]), flat(_as_now(kept["spec"]))
    names = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    changed = sorted(name for name in names if not _is_operational(name))
    if kept.get("code") != record["code"]:
        changed.append(MODULES)
    return changed


def code_alone(kept: Mapping[str, Any], record: dict[str, Any]) -> bool:
    """Whether two spec records differ only in the code of functions with the same names."""
    ours, theirs = flat(record["spec"]), flat(_as_now(kept["spec"]))

    def same_functions(field: str) -> bool:
        return bool(_without_code(ours.get(field)) == _without_code(theirs.get(field)))

    return all(field == MODULES or same_functions(field) for field in changed_fields(kept, record))


def fingerprint(record: dict[str, Any]) -> str:
    """A short hash of what a step computes: equal for records without `changed_fields`."""
    return _hash([_computed(record), record["code"]])


def fields_fingerprint(record: dict[str, Any]) -> str:
    """`fingerprint` without the functions' code: equal for records that differ in `code_alone`."""
    return _hash(_without_code(_computed(record)))


def _without_code(value: Any) -> Any:
    """A spec's value, with by-value functions reduced to their names; a search space has lists of them."""
    if isinstance(value, dict):
        return {name: _without_code(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_code(item) for item in value]
    return value.partition("#")[0] if is_name_of_value(value) else value


def _computed(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flat(record["spec"]).items() if not _is_operational(name)}


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]


def _as_now(spec: dict[str, Any]) -> dict[str, Any]:
    """A stored spec with the defaults of fields added since; unchanged if it is no longer valid."""
    try:
        return parse_spec(spec).to_json()
    except SpecError:
        return spec


def _is_operational(field: str) -> bool:
    field = field.removeprefix("train.")  # in a search or a retraining
    return any(field == name or field.startswith(name + ".") for name in OPERATIONAL)
