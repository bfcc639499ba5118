"""Check whether a cluster can ever provide a step's resources."""

from __future__ import annotations

from typing import Any

from plugin_core.errors import InfeasibleError
from plugin_core.specs.step import StepSpec, in_sum


def check_fits(spec: StepSpec, nodes: list[dict[str, Any]]) -> None:
    """Raise InfeasibleError if the step needs more than these nodes have, even when idle."""
    bundles = spec.bundles()
    have: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.get("resources_total", {}).items():
            have[name] = have.get(name, 0.0) + amount
    if not nodes:
        return
    for name, wanted in sorted(in_sum(bundles).items()):
        if wanted > have.get(name, 0.0):
            raise InfeasibleError(
                f"{spec.resources_field}: infeasible, the step takes {wanted:g} {name}"
                f"{_explain(spec, name)}; expected up to {have.get(name, 0.0):g} {name}, all that the cluster has"
            )
    for _, bundle in bundles:
        if not any(
            all(node.get("resources_total", {}).get(name, 0.0) >= amount for name, amount in bundle.items() if amount)
            for node in nodes
        ):
            shape = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
            raise InfeasibleError(
                f"{spec.resources_field}: infeasible, one process takes {shape}; expected what fits on one of the"
                f" cluster's {len(nodes)} nodes"
            )


def _explain(spec: StepSpec, name: str) -> str:
    reads = getattr(spec, "datasets", None) or getattr(spec, "dataset", None)
    return " (1 of them for Ray Data to read the datasets)" if reads and name == "CPU" else ""
