"""A spec out of data: JSON, YAML, or what an engine's user gave."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs.batch_infer import BatchInferSpec
from plugin_core.specs.common import StepSpec
from plugin_core.specs.evaluate import EvaluateSpec
from plugin_core.specs.load import load_file
from plugin_core.specs.retrain import RetrainSpec
from plugin_core.specs.train import TrainSpec
from plugin_core.specs.tune import TuneSpec

AnySpec = TrainSpec | TuneSpec | EvaluateSpec | BatchInferSpec | RetrainSpec
KINDS: dict[str, type[StepSpec]] = {
    "train": TrainSpec,
    "tune": TuneSpec,
    "evaluate": EvaluateSpec,
    "batch_infer": BatchInferSpec,
    "retrain": RetrainSpec,
}


def parse_spec(data: Any) -> StepSpec:
    """A spec from JSON-like data (or a spec as it is). Raises SpecError with one sentence a wrong field."""
    if isinstance(data, StepSpec):
        return data
    if not isinstance(data, dict):
        raise SpecError(f"spec: given {type(data).__name__}; accepted is a mapping of fields")
    kind = data.get("kind", "train")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SpecError(f"kind: given {shown(kind)}; accepted are {', '.join(KINDS)}")
    return KINDS[kind].model_validate(data)


def load_spec(path: str | Path) -> StepSpec:
    """A spec from a YAML or JSON file."""
    data = load_file(Path(path))
    if not isinstance(data, dict):
        raise SpecError(f"spec file: given {str(path)!r}; accepted is YAML or JSON that holds a mapping of fields")
    return parse_spec(data)


def as_spec(value: Any, accepted: type[StepSpec], folder: str | Path | None = None) -> StepSpec:
    """What an engine's user gave as a spec: a spec, a dict of its fields, or a YAML or JSON file (looked up in `folder`).

    `accepted`: the kind that is wanted, which a dict need not name. Raises SpecError.
    """
    if isinstance(value, (str, os.PathLike)):
        spec = load_spec(Path(folder or ".", value))
    elif isinstance(value, Mapping):
        kind = accepted.model_fields.get("kind")
        spec = parse_spec({**({"kind": kind.default} if kind else {}), **value})
    else:
        spec = parse_spec(value)
    if not isinstance(spec, accepted):
        raise SpecError(f"kind: given {spec.kind!r}; accepted here is {accepted.__name__}")  # type: ignore[attr-defined]
    return spec
