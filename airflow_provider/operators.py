"""The operators: each runs one step as a Ray job and returns its result as a small JSON dict in XCom.

train = RayTrainOperator(task_id="train", train_loop_per_worker=train_loop, scaling_config={"num_workers": 2})
RayEvaluateOperator(task_id="evaluate", evaluate=evaluate, checkpoint=train.output)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider.base import RayStepOperator
from airflow_provider.clusters import EndRayClusterOperator, StartRayClusterOperator
from airflow_provider.promote import PromoteModelOperator
from plugin_core.engine import BatchInferSpec, EvaluateSpec, RayJobSpec, RetrainSpec, TrainSpec, TuneSpec


class RayTrainOperator(RayStepOperator):
    """Distributed training. The keyword arguments are the fields of `plugin_core.TrainSpec`; None: the spec's default.

    XGBoost's and LightGBM's `params` are called `model_params` here, since every Airflow operator has its own `params`.
    Returns the train result; `checkpoint=train.output` passes its checkpoint to the next step.
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
        data_config: str | Callable[..., Any] | None = None,
        preprocessor: str | Callable[..., Any] | None = None,
        torch_config: dict[str, Any] | None = None,
        tensorflow_config: dict[str, Any] | None = None,
        deepspeed_config: dict[str, Any] | None = None,
        model_params: dict[str, Any] | None = None,
        label_column: str | None = None,
        num_boost_round: int | None = None,
        early_stopping_rounds: int | None = None,
        checkpoint_frequency: int | None = None,
        framework_callbacks: list[str | Callable[..., Any]] | None = None,
        hang_detection: Any = None,
        failure_policy: Any = None,
        validation: Any = None,
        seed: int | None = None,
        deterministic: bool | None = None,
        report_all_ranks: bool | None = None,
        world_check: bool | None = None,
        resume_from: Any = None,
        **kwargs: Any,
    ):
        fields = {
            "framework": framework,
            "train_loop_per_worker": train_loop_per_worker,
            "train_loop_config": train_loop_config,
            "scaling_config": scaling_config,
            "datasets": datasets,
            "data_config": data_config,
            "preprocessor": preprocessor,
            "torch_config": torch_config,
            "tensorflow_config": tensorflow_config,
            "deepspeed_config": deepspeed_config,
            "params": model_params,
            "label_column": label_column,
            "num_boost_round": num_boost_round,
            "early_stopping_rounds": early_stopping_rounds,
            "checkpoint_frequency": checkpoint_frequency,
            "framework_callbacks": framework_callbacks,
            "hang_detection": hang_detection,
            "failure_policy": failure_policy,
            "validation": validation,
            "seed": seed,
            "deterministic": deterministic,
            "report_all_ranks": report_all_ranks,
            "world_check": world_check,
            "resume_from": resume_from,
        }
        super().__init__(fields=fields, **kwargs)


class RayTuneOperator(RayStepOperator):
    """A search for the best training (`plugin_core.TuneSpec`); `train` is a TrainSpec or a dict of its fields.

    `resume_from=search.output` adds trials to a finished search.
    """

    spec_class = TuneSpec

    def __init__(
        self,
        *,
        train: Any = None,
        param_space: dict[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        num_samples: int | None = None,
        scheduler: Any = None,
        search_alg: Any = None,
        max_concurrent_trials: int | None = None,
        time_budget_s: float | None = None,
        stop: dict[str, float] | None = None,
        resume_from: Any = None,
        **kwargs: Any,
    ):
        fields = {
            "train": train,
            "param_space": param_space,
            "metric": metric,
            "mode": mode,
            "num_samples": num_samples,
            "scheduler": scheduler,
            "search_alg": search_alg,
            "max_concurrent_trials": max_concurrent_trials,
            "time_budget_s": time_budget_s,
            "stop": stop,
            "resume_from": resume_from,
        }
        super().__init__(fields=fields, **kwargs)


class RayRetrainOperator(RayStepOperator):
    """Train, evaluate against the champion, promote if better (`plugin_core.RetrainSpec`); `train` is a TrainSpec,
    `evaluate` an Evaluation, or dicts of their fields."""

    spec_class = RetrainSpec

    def __init__(
        self,
        *,
        model: str | None = None,
        alias: str | None = None,
        registry: str | None = None,
        train: Any = None,
        evaluate: Any = None,
        warm_start: bool | None = None,
        skip_unchanged: bool | None = None,
        on_overlap: str | None = None,
        allow_older: bool | None = None,
        **kwargs: Any,
    ):
        fields = {
            "model": model,
            "alias": alias,
            "registry": registry,
            "train": train,
            "evaluate": evaluate,
            "warm_start": warm_start,
            "skip_unchanged": skip_unchanged,
            "on_overlap": on_overlap,
            "allow_older": allow_older,
        }
        super().__init__(fields=fields, **kwargs)


class RayEvaluateOperator(RayStepOperator):
    """Evaluate a checkpoint (`plugin_core.EvaluateSpec`); the result's `passed` says whether it met its thresholds."""

    spec_class = EvaluateSpec

    def __init__(
        self,
        *,
        evaluate: str | Callable[..., Any] | None = None,
        predictor: str | Callable[..., Any] | None = None,
        task: str | None = None,
        torchmetrics: str | Callable[..., Any] | None = None,
        checkpoint: Any = None,
        framework: str | None = None,
        dataset: Any = None,
        config: dict[str, Any] | None = None,
        label_column: str | None = None,
        prediction_column: str | None = None,
        score_column: str | None = None,
        slices: list[str] | None = None,
        plots: bool | None = None,
        thresholds: dict[str, Any] | None = None,
        compare_to: Any = None,
        must_beat: Any = None,
        batch_size: int | None = None,
        concurrency: int | tuple[int, int] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        **kwargs: Any,
    ):
        fields = {
            "evaluate": evaluate,
            "predictor": predictor,
            "task": task,
            "torchmetrics": torchmetrics,
            "checkpoint": checkpoint,
            "framework": framework,
            "dataset": dataset,
            "config": config,
            "label_column": label_column,
            "prediction_column": prediction_column,
            "score_column": score_column,
            "slices": slices,
            "plots": plots,
            "thresholds": thresholds,
            "compare_to": compare_to,
            "must_beat": must_beat,
            "batch_size": batch_size,
            "concurrency": concurrency,
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
        }
        super().__init__(fields=fields, **kwargs)


class RayBatchInferOperator(RayStepOperator):
    """Run a predictor over a dataset and write files (`plugin_core.BatchInferSpec`)."""

    spec_class = BatchInferSpec

    def __init__(
        self,
        *,
        predictor: str | Callable[..., Any] | None = None,
        checkpoint: Any = None,
        framework: str | None = None,
        dataset: Any = None,
        output_path: str | None = None,
        output_format: str | None = None,
        output_columns: list[str] | None = None,
        partition_by: list[str] | None = None,
        preserve_order: bool | None = None,
        preserve_rows: bool | None = None,
        key_column: str | None = None,
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
            "framework": framework,
            "dataset": dataset,
            "output_path": output_path,
            "output_format": output_format,
            "output_columns": output_columns,
            "partition_by": partition_by,
            "preserve_order": preserve_order,
            "preserve_rows": preserve_rows,
            "key_column": key_column,
            "config": config,
            "batch_size": batch_size,
            "concurrency": concurrency,
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
        }
        super().__init__(fields=fields, **kwargs)


class RayJobOperator(RayStepOperator):
    """Any work on a Ray cluster (`plugin_core.RayJobSpec`): a function, or a command. The result's `value` is what the
    function returned, or `value_uri` if that is large.

    `resources` is called `ray_resources` here, since every Airflow operator has its own `resources`.
    """

    spec_class = RayJobSpec

    def __init__(
        self,
        *,
        function: str | Callable[..., Any] | None = None,
        arguments: dict[str, Any] | None = None,
        command: list[str] | str | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        ray_resources: dict[str, float] | None = None,
        task_resources: dict[str, float] | None = None,
        **kwargs: Any,
    ):
        fields = {
            "function": function,
            "arguments": arguments,
            "command": command,
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
            "resources": ray_resources,
            "task_resources": task_resources,
        }
        super().__init__(fields=fields, **kwargs)


__all__ = [
    "EndRayClusterOperator",
    "PromoteModelOperator",
    "RayBatchInferOperator",
    "RayEvaluateOperator",
    "RayJobOperator",
    "RayRetrainOperator",
    "RayStepOperator",
    "RayTrainOperator",
    "RayTuneOperator",
    "StartRayClusterOperator",
]
