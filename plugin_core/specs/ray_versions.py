"""Which version of Ray a step needs: the oldest supported one, and which fields need a newer one."""

from __future__ import annotations

from typing import Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs.step import StepSpec

#: Older ones cannot restore a run; see docs/versions.md.
OLDEST = "2.56"
#: Field of a training → the first Ray that has it.
SINCE = {
    "run_config.failure_config.max_preemption_failures": "2.58",
    "run_config.failure_config.relax_collectives_on_preemption": "2.60",
    "run_config.failure_config.preemption_grace_s": "2.60",
    "run_config.failure_config.nccl_hang": "2.60",
    "failure_policy.preempted": "2.58",
}


def check_ray(spec: StepSpec, version: str) -> None:
    """Raise SpecError if Ray of this version on the cluster is too old for a step."""
    from packaging.version import InvalidVersion, Version

    try:
        found = Version(version)
    except InvalidVersion:  # a custom build
        return
    if found < Version(OLDEST):
        raise SpecError(f"cluster: got one with Ray {version}; expected Ray {OLDEST} or newer")
    for step in (spec, getattr(spec, "train", None)):
        for field, since in SINCE.items():
            value, default = _value(step, field)
            if value != default and found < Version(since):
                raise SpecError(
                    f"{field}: got {shown(value)} for a cluster with Ray {version}; expected Ray {since} or newer"
                )


def _value(spec: Any, path: str) -> tuple[Any, Any]:
    """A field's value and its default; None for both if there is no such field."""
    value, default = spec, None
    for name in path.split("."):
        fields = getattr(type(value), "model_fields", {})
        if name not in fields:
            return None, None
        value, default = getattr(value, name), fields[name].get_default(call_default_factory=True)
    return value, default
