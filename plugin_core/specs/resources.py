"""What a step takes of a cluster at the least, and whether the cluster can ever give it."""

from __future__ import annotations

from typing import Any

from plugin_core.errors import InfeasibleError
from plugin_core.specs.batch_infer import BatchInferSpec
from plugin_core.specs.common import StepSpec
from plugin_core.specs.evaluate import Evaluation
from plugin_core.specs.retrain import RetrainSpec
from plugin_core.specs.train import TrainSpec
from plugin_core.specs.tune import TuneSpec

#: Processes of one shape: how many, and what each takes (CPUs and GPUs; Ray's units for the rest).
Bundle = tuple[int, dict[str, float]]


#: Ray Data reads on CPUs that the workers leave free; with none left it waits for ever.
_READING: Bundle = (1, {"CPU": 1.0})


def required_bundles(spec: StepSpec) -> list[Bundle]:
    """What the step takes at once at the least."""
    if isinstance(spec, TuneSpec):
        return required_bundles(spec.train)  # of one trial
    if isinstance(spec, RetrainSpec):
        # the parts run one after the other
        return max(required_bundles(spec.train), required_bundles(spec.evaluate), key=lambda b: together(b).get("CPU", 0.0))
    if isinstance(spec, TrainSpec):
        scaling = spec.scaling_config
        workers = (scaling.worker_range[0], scaling.worker_resources())
        return [workers, _READING] if spec.datasets else [workers]
    if isinstance(spec, Evaluation) and spec.evaluate is not None:
        own = (1, {"CPU": spec.num_cpus, "GPU": spec.num_gpus})
        return [own, _READING] if spec.dataset else [own]
    if isinstance(spec, (Evaluation, BatchInferSpec)):
        actors = spec.concurrency[0] if isinstance(spec.concurrency, tuple) else spec.concurrency
        return [(actors, {"CPU": spec.num_cpus, "GPU": spec.num_gpus}), _READING]
    return []


def together(bundles: list[Bundle]) -> dict[str, float]:
    """What these processes take in sum."""
    names = {name for _, bundle in bundles for name in bundle}
    return {name: sum(count * bundle.get(name, 0.0) for count, bundle in bundles) for name in names}


def check_fits(spec: StepSpec, nodes: list[dict[str, Any]]) -> None:
    """Raise InfeasibleError when the step asks for more than these nodes have, even empty."""
    bundles = required_bundles(spec)
    have: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.get("resources_total", {}).items():
            have[name] = have.get(name, 0.0) + amount
    if not nodes:
        return
    for name, wanted in sorted(together(bundles).items()):
        if wanted > have.get(name, 0.0):
            raise InfeasibleError(
                f"{_resource_field(spec)}: infeasible, the step takes {wanted:g} {name}"
                f"{_explain(spec, name)}; accepted is up to {have.get(name, 0.0):g} {name}, all that the cluster has"
            )
    for _, bundle in bundles:
        if not any(
            all(node.get("resources_total", {}).get(name, 0.0) >= amount for name, amount in bundle.items() if amount)
            for node in nodes
        ):
            shape = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
            raise InfeasibleError(
                f"{_resource_field(spec)}: infeasible, one process takes {shape}; accepted is what fits on one of the"
                f" cluster's {len(nodes)} nodes"
            )


def _resource_field(spec: StepSpec) -> str:
    if isinstance(spec, (TuneSpec, RetrainSpec)):
        return "train.scaling_config"
    return "scaling_config" if isinstance(spec, TrainSpec) else "num_cpus/num_gpus"


def _explain(spec: StepSpec, name: str) -> str:
    reads = getattr(spec, "datasets", None) or getattr(spec, "dataset", None)
    return " (1 of them for Ray Data to read the datasets)" if reads and name == "CPU" else ""
