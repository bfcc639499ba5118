"""Distributed training as a workflow step.

    from plugin_core import TrainSpec, run
    result = run(TrainSpec(train_loop_per_worker=train_loop, run_config=RunConfig(name="digits")))

Nothing heavy is imported here: names load on first use, so that an engine's parser stays fast.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("ray-train-workflows runs under Linux and macOS; on Windows run it in WSL")

if TYPE_CHECKING:
    from plugin_core.clusters.base import LocalCluster as LocalCluster
    from plugin_core.clusters.base import RayCluster as RayCluster
    from plugin_core.clusters.fallback import FallbackCluster as FallbackCluster
    from plugin_core.clusters.kuberay import KubeRayCluster as KubeRayCluster
    from plugin_core.clusters.kuberay_settings import KubeRaySettings as KubeRaySettings
    from plugin_core.loops.artifacts import artifact_directory as artifact_directory
    from plugin_core.loops.preemption import PreemptionNotice as PreemptionNotice
    from plugin_core.loops.preprocessors import load_preprocessor as load_preprocessor
    from plugin_core.loops.preprocessors import save_preprocessor as save_preprocessor
    from plugin_core.registry.api import get_model as get_model
    from plugin_core.registry.api import promote as promote
    from plugin_core.registry.api import rollback as rollback
    from plugin_core.registry.base import ModelVersion as ModelVersion
    from plugin_core.runs.lineage import best_train_spec as best_train_spec
    from plugin_core.runs.plots import plot as plot
    from plugin_core.runs.report_frame import history as history
    from plugin_core.specs import BatchInferSpec as BatchInferSpec
    from plugin_core.specs import CheckpointConfig as CheckpointConfig
    from plugin_core.specs import Comet as Comet
    from plugin_core.specs import Comparison as Comparison
    from plugin_core.specs import DatasetConfig as DatasetConfig
    from plugin_core.specs import EvaluateSpec as EvaluateSpec
    from plugin_core.specs import Evaluation as Evaluation
    from plugin_core.specs import FailureConfig as FailureConfig
    from plugin_core.specs import Limits as Limits
    from plugin_core.specs import LocalTier as LocalTier
    from plugin_core.specs import MLflow as MLflow
    from plugin_core.specs import RayJobSpec as RayJobSpec
    from plugin_core.specs import RetrainSpec as RetrainSpec
    from plugin_core.specs import RunConfig as RunConfig
    from plugin_core.specs import ScalingConfig as ScalingConfig
    from plugin_core.specs import TensorBoard as TensorBoard
    from plugin_core.specs import TensorflowConfig as TensorflowConfig
    from plugin_core.specs import Threshold as Threshold
    from plugin_core.specs import TorchConfig as TorchConfig
    from plugin_core.specs import TrainSpec as TrainSpec
    from plugin_core.specs import TuneSpec as TuneSpec
    from plugin_core.specs import WandB as WandB
    from plugin_core.specs import load_spec as load_spec
    from plugin_core.specs import parse_spec as parse_spec
    from plugin_core.specs.parse import parse_result as parse_result
    from plugin_core.specs.results import BatchInferResult as BatchInferResult
    from plugin_core.specs.results import CheckpointRef as CheckpointRef
    from plugin_core.specs.results import EvaluationResult as EvaluationResult
    from plugin_core.specs.results import RayJobResult as RayJobResult
    from plugin_core.specs.results import RetrainResult as RetrainResult
    from plugin_core.specs.results import RunRef as RunRef
    from plugin_core.specs.results import TrainResult as TrainResult
    from plugin_core.specs.results import TuneResult as TuneResult
    from plugin_core.supervisor.in_process import execute as execute
    from plugin_core.supervisor.supervisor import arun as arun
    from plugin_core.supervisor.supervisor import run as run

#: The public names, by the module that defines them. A test compares this list with the imports above.
_PUBLIC = {
    "clusters.base": "LocalCluster RayCluster",
    "clusters.fallback": "FallbackCluster",
    "clusters.kuberay": "KubeRayCluster",
    "clusters.kuberay_settings": "KubeRaySettings",
    "loops.artifacts": "artifact_directory",
    "loops.preemption": "PreemptionNotice",
    "loops.preprocessors": "load_preprocessor save_preprocessor",
    "registry.api": "get_model promote rollback",
    "registry.base": "ModelVersion",
    "runs.lineage": "best_train_spec",
    "runs.plots": "plot",
    "runs.report_frame": "history",
    "specs": "BatchInferSpec CheckpointConfig Comet Comparison DatasetConfig EvaluateSpec Evaluation FailureConfig"
    " Limits LocalTier MLflow RayJobSpec RetrainSpec RunConfig ScalingConfig TensorBoard TensorflowConfig Threshold"
    " TorchConfig TrainSpec TuneSpec WandB load_spec parse_spec",
    "specs.parse": "parse_result",
    "specs.results": "BatchInferResult CheckpointRef EvaluationResult RayJobResult RetrainResult RunRef TrainResult"
    " TuneResult",
    "supervisor.in_process": "execute",
    "supervisor.supervisor": "arun run",
}


def lazy_exports(module: str, public: dict[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` of a module whose names load on first use. `public`: the names, by the module of the same
    package that defines them."""
    package = module.partition(".")[0]
    homes = {name: f"{package}.{home}" for home, names in public.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return sorted(homes), load


__all__, __getattr__ = lazy_exports(__name__, _PUBLIC)
