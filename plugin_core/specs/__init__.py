"""Specs: steps as inert data, validated here, stored as JSON or YAML, run by the driver.

Field names and defaults follow `ray.train` (ScalingConfig, RunConfig, CheckpointConfig, FailureConfig, TorchConfig of Ray
2.60); `DEPARTURES` lists the defaults that differ on purpose. Never put a secret into a spec: name an environment variable
of the cluster instead. Running a step is in `driver`; its files are in `runs`.
"""

from __future__ import annotations

from plugin_core.specs.batch_infer import BatchInferSpec as BatchInferSpec
from plugin_core.specs.common import DEPARTURES as DEPARTURES
from plugin_core.specs.common import SCHEMA as SCHEMA
from plugin_core.specs.common import CheckpointConfig as CheckpointConfig
from plugin_core.specs.common import DatasetConfig as DatasetConfig
from plugin_core.specs.common import FailureConfig as FailureConfig
from plugin_core.specs.common import Limits as Limits
from plugin_core.specs.common import LocalTier as LocalTier
from plugin_core.specs.common import RunConfig as RunConfig
from plugin_core.specs.common import ScalingConfig as ScalingConfig
from plugin_core.specs.common import SplitConfig as SplitConfig
from plugin_core.specs.evaluate import Comparison as Comparison
from plugin_core.specs.evaluate import EvaluateSpec as EvaluateSpec
from plugin_core.specs.evaluate import Evaluation as Evaluation
from plugin_core.specs.evaluate import Threshold as Threshold
from plugin_core.specs.parse import as_spec as as_spec
from plugin_core.specs.parse import load_spec as load_spec
from plugin_core.specs.parse import parse_spec as parse_spec
from plugin_core.specs.ray_job import RayJobSpec as RayJobSpec
from plugin_core.specs.retrain import RetrainSpec as RetrainSpec
from plugin_core.specs.step import StepSpec as StepSpec
from plugin_core.specs.tracking import Comet as Comet
from plugin_core.specs.tracking import MLflow as MLflow
from plugin_core.specs.tracking import TensorBoard as TensorBoard
from plugin_core.specs.tracking import WandB as WandB
from plugin_core.specs.train import TensorflowConfig as TensorflowConfig
from plugin_core.specs.train import TorchConfig as TorchConfig
from plugin_core.specs.train import TrainSpec as TrainSpec
from plugin_core.specs.tune import TuneSpec as TuneSpec
