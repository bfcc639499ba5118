"""The operators: one step each, run as a Ray job, its result a small JSON dict in XCom.

train = RayTrainOperator(task_id="train", train_loop_per_worker=train_loop, scaling_config={"num_workers": 2})
RayEvaluateOperator(task_id="evaluate", evaluate=evaluate, checkpoint=train.output)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider.base import RayStepOperator
from plugin_core.specs import BatchInferSpec, EvaluateSpec, TrainSpec


class RayTrainOperator(RayStepOperator):
    """Distributed training (`plugin_core.TrainSpec`, whose fields are the keyword arguments; None: the spec's default).

    XGBoost's `params` are called `xgboost_params` here, since every Airflow operator has `params` of its own. Returns the
    train result; `checkpoint=train.output` hands its checkpoint to the next step.
    """

    spec_class = TrainSpec

    def __init__(
        self,
        *,
        framework: str | None = None,
        train_loop_per_worker: str | Callable[..., Any] | None = None,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: dict[str, Any] | None = None,
        datasets: dict[str, Any] | None = None,
        torch_config: dict[str, Any] | None = None,
        xgboost_params: dict[str, Any] | None = None,
        label_column: str | None = None,
        num_boost_round: int | None = None,
        resume_from: Any = None,
        **kwargs: Any,
    ):
        fields = {
            "framework": framework,
            "train_loop_per_worker": train_loop_per_worker,
            "train_loop_config": train_loop_config,
            "scaling_config": scaling_config,
            "datasets": datasets,
            "torch_config": torch_config,
            "params": xgboost_params,
            "label_column": label_column,
            "num_boost_round": num_boost_round,
            "resume_from": resume_from,
        }
        super().__init__(fields=fields, **kwargs)


class RayEvaluateOperator(RayStepOperator):
    """A user function on a checkpoint (`plugin_core.EvaluateSpec`); the result's `passed` says if its thresholds held."""

    spec_class = EvaluateSpec

    def __init__(
        self,
        *,
        evaluate: str | Callable[..., Any] | None = None,
        checkpoint: Any = None,
        dataset: Any = None,
        config: dict[str, Any] | None = None,
        thresholds: dict[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        **kwargs: Any,
    ):
        fields = {
            "evaluate": evaluate,
            "checkpoint": checkpoint,
            "dataset": dataset,
            "config": config,
            "thresholds": thresholds,
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
        }
        super().__init__(fields=fields, **kwargs)


class RayBatchInferOperator(RayStepOperator):
    """A predictor class over a dataset, to parquet (`plugin_core.BatchInferSpec`)."""

    spec_class = BatchInferSpec

    def __init__(
        self,
        *,
        predictor: str | Callable[..., Any] | None = None,
        checkpoint: Any = None,
        dataset: Any = None,
        output_path: str | None = None,
        config: dict[str, Any] | None = None,
        batch_size: int | None = None,
        concurrency: int | tuple[int, int] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        **kwargs: Any,
    ):
        fields = {
            "predictor": predictor,
            "checkpoint": checkpoint,
            "dataset": dataset,
            "output_path": output_path,
            "config": config,
            "batch_size": batch_size,
            "concurrency": concurrency,
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
        }
        super().__init__(fields=fields, **kwargs)


__all__ = ["RayBatchInferOperator", "RayEvaluateOperator", "RayStepOperator", "RayTrainOperator"]
