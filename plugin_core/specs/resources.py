"""Check whether a cluster can ever provide a step's resources, and describe resources in words."""

from __future__ import annotations

from collections.abc import Mapping
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
                f"{spec.resources_field}: infeasible, the step takes {in_words({name: wanted})}"
                f"{_explain(spec, name)}; expected up to {in_words({name: have.get(name, 0.0)})}, all that the cluster has"
            )
    for _, bundle in bundles:
        if not any(
            all(node.get("resources_total", {}).get(name, 0.0) >= amount for name, amount in bundle.items() if amount)
            for node in nodes
        ):
            raise InfeasibleError(
                f"{spec.resources_field}: infeasible, one process takes {in_words(bundle)}; expected what fits on one of"
                f" the cluster's {len(nodes)} nodes"
            )


def _explain(spec: StepSpec, name: str) -> str:
    reads = getattr(spec, "datasets", None) or getattr(spec, "dataset", None)
    return " (1 of them for Ray Data to read the datasets)" if reads and name == "CPU" else ""


def in_words(resources: Mapping[str, float]) -> str:
    """`{"CPU": 1, "GPU": 2}` as "1 CPU, 2 GPUs"; a custom resource keeps its name."""
    counted = ("CPU", "GPU")
    return ", ".join(f"{amount:g} {name}{'s' * (name in counted and amount != 1)}" for name, amount in resources.items())
