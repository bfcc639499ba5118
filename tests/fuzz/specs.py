"""Mutations of valid specs of all kinds: each field gets what its kind should refuse, and what it should take.

A field of this table is a path in one of the specs. A test sees to it that no field of a spec is missing here.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz import values as v
from tests.fuzz.values import Given

_SHARED: dict[str, list[Given]] = {
    "run_config": v.CONFIG,
    "run_config.name": v.RUN_NAME,
    "run_config.storage_path": v.PLACE,
    "run_config.worker_runtime_env": v.RUNTIME_ENV,
    "run_config.checkpoint_config": v.CONFIG,
    "run_config.checkpoint_config.num_to_keep": v.COUNT,
    "run_config.checkpoint_config.checkpoint_score_attribute": v.NAME,
    "run_config.checkpoint_config.checkpoint_score_order": v.WORD,
    "run_config.failure_config": v.CONFIG,
    "run_config.failure_config.max_failures": v.TRIES,
    "run_config.failure_config.controller_failure_limit": v.TRIES,
    "run_config.failure_config.max_preemption_failures": v.TRIES,
    "run_config.failure_config.relax_collectives_on_preemption": v.FLAG,
    "run_config.failure_config.preemption_grace_s": v.GRACE,
    "limits": v.CONFIG,
    "limits.timeout_s": v.SECONDS,
    "limits.scheduling_timeout_s": v.SECONDS,
    "limits.max_attempts": v.COUNT,
    "limits.heartbeat_ttl_s": v.SECONDS,
    "limits.unreachable_timeout_s": v.SECONDS,
    "limits.orphan_timeout_s": v.SECONDS,
    "limits.artifact_bytes": v.WHOLE,
    "runtime_env": v.RUNTIME_ENV,
    "runtime_env.env_vars": v.VARIABLES,
    "tracking": v.TRACKING,
    "kind": v.WORD,
}


def _dataset(path: str) -> dict[str, list[Given]]:
    fields = {
        "path": [given for given in v.PLACE if given.name != "a list"],
        "format": v.WORD,
        "columns": v.NAMES,
        "version": v.TEXT,
        "split": v.CONFIG,
        "split.part": v.WORD,
        "split.test_size": v.SHARE,
        "split.seed": v.SEED,
        "split.by": v.NAMES,
        "shuffle_seed": v.SEED,
        "materialize": v.FLAG,
        "shard": v.FLAG,
    }
    return {path: v.DATASET, **{f"{path}.{name}": given for name, given in fields.items()}}


_TRAIN: dict[str, list[Given]] = {
    "framework": v.WORD,
    "train_loop_per_worker": v.FUNCTION,
    "train_loop_config": v.MAPPING,
    "train_loop_config.lr": v.PLAIN,
    "train_loop_config.layers": v.PLAIN,
    "scaling_config": v.CONFIG,
    "scaling_config.num_workers": v.PROCESSES,
    "scaling_config.use_gpu": v.FLAG,
    "scaling_config.resources_per_worker": v.MAPPING,
    "scaling_config.resources_per_worker.CPU": v.AMOUNT,
    "scaling_config.placement_strategy": v.WORD,
    "scaling_config.accelerator_type": v.NAME,
    "scaling_config.label_selector": v.MAPPING,
    "scaling_config.label_selector.zone": v.TEXT,
    "scaling_config.elastic_resize_monitor_interval_s": v.SECONDS,
    "datasets": v.CONFIG,
    **_dataset("datasets.train"),
    "datasets.made": v.DATASET,
    "datasets.made.function": v.FUNCTION,
    "datasets.made.kwargs": v.MAPPING,
    "datasets.made.kwargs.rows": v.PLAIN,
    "preprocessor": v.FUNCTION,
    "torch_config": v.CONFIG,
    "torch_config.backend": v.WORD,
    "torch_config.init_method": v.WORD,
    "torch_config.timeout_s": v.COUNT,
    "seed": v.SEED,
    "report_all_ranks": v.FLAG,
    "world_check": v.FLAG,
    "resume_from": v.CHECKPOINT,
}
_TRACKERS: dict[str, list[Given]] = {
    "tracking.0": v.CONFIG,
    "tracking.0.step_metric": v.NAME,
    "tracking.0.required": v.FLAG,
    "tracking.0.tracking_uri": [*v.NOTHING, Given("a number", 5), Given("a password", "http://u:p@h")],
    "tracking.0.experiment_name": v.NAME,
    "tracking.0.run_id": v.NAME,
    "tracking.0.tags": [*v.NOTHING, Given("a number as a tag", {"a": 1}), Given("a list", ["a"])],
    "tracking.0.log_checkpoints": v.FLAG,
    "tracking.1.project": v.NAME,
    "tracking.1.entity": v.NAME,
    "tracking.1.group": v.NAME,
    "tracking.1.tags": v.NAMES,
    "tracking.1.mode": v.WORD,
    "tracking.2.project_name": v.NAME,
    "tracking.2.workspace": v.NAME,
    "tracking.2.tags": v.NAMES,
    "tracking.2.mode": v.WORD,
}
_TREES: dict[str, list[Given]] = {
    "params": v.MAPPING,
    "params.max_depth": v.PLAIN,
    "label_column": v.NAME,
    "num_boost_round": v.COUNT,
    "early_stopping_rounds": v.COUNT,
    "checkpoint_frequency": v.COUNT,
}
_DEEPSPEED: dict[str, list[Given]] = {
    "deepspeed_config": v.MAPPING,
    "deepspeed_config.zero_optimization": [*v.NOTHING, Given("text", "x"), Given("stage", {"stage": 7})],
}
_TENSORFLOW: dict[str, list[Given]] = {"tensorflow_config": v.CONFIG, "tensorflow_config.legacy_keras": v.FLAG}
_JUDGING: dict[str, list[Given]] = {
    "framework": v.WORD,
    "config": v.MAPPING,
    "config.size": v.PLAIN,
    "plots": v.FLAG,
    "thresholds": v.CONFIG,
    "thresholds.accuracy": v.THRESHOLD,
    "must_beat": v.CONFIG,
    "must_beat.accuracy": v.COMPARISON,
    "must_beat.accuracy.mode": v.WORD,
    "must_beat.accuracy.tolerance": [g for g in v.NUMBER if not isinstance(g.value, int) or g.wrong],
    "batch_size": v.COUNT,
    "num_cpus": v.AMOUNT,
    "num_gpus": v.AMOUNT,
}
_PREDICTING: dict[str, list[Given]] = {
    **_JUDGING,
    "predictor": v.FUNCTION,
    "task": v.WORD,
    "torchmetrics": v.FUNCTION,
    **_dataset("dataset"),
    "label_column": v.NAME,
    "prediction_column": v.NAME,
    "score_column": v.NAME,
    "slices": v.NAMES,
    "concurrency": v.PROCESSES,
}
_EVALUATE: dict[str, list[Given]] = {"checkpoint": v.CHECKPOINT, "compare_to": v.CHECKPOINT}
_INFER: dict[str, list[Given]] = {
    "predictor": v.FUNCTION,
    "checkpoint": v.CHECKPOINT,
    "framework": v.WORD,
    **_dataset("dataset"),
    "output_path": v.PLACE,
    "output_format": v.WORD,
    "output_columns": v.NAMES,
    "partition_by": v.NAMES,
    "preserve_order": v.FLAG,
    "preserve_rows": v.FLAG,
    "key_column": v.NAME,
    "config": v.MAPPING,
    "config.size": v.PLAIN,
    "batch_size": v.COUNT,
    "concurrency": v.PROCESSES,
    "num_cpus": v.AMOUNT,
    "num_gpus": v.AMOUNT,
}
_TUNE: dict[str, list[Given]] = {
    "train": v.CONFIG,
    "param_space": v.SPACE,
    "param_space.train_loop_config.lr": v.SAMPLER,
    "param_space.seed": v.SEEDS,
    "metric": v.NAME,
    "mode": v.WORD,
    "num_samples": v.COUNT,
    "scheduler": v.NAMED,
    "search_alg": v.NAMED,
    "max_concurrent_trials": v.COUNT,
    "time_budget_s": v.SECONDS,
    "stop": v.CONFIG[:-3],
    "stop.loss": v.NUMBER,
}
_RETRAIN: dict[str, list[Given]] = {
    "model": v.MODEL_NAME,
    "alias": v.MODEL_NAME,
    "registry": v.PLACE,
    "train": v.CONFIG,
    "evaluate": v.CONFIG,
    "warm_start": v.FLAG,
    "skip_unchanged": v.FLAG,
    "on_overlap": v.WORD,
}


@dataclass(frozen=True)
class Base:
    """A valid spec, and its fields that are mutated."""

    name: str
    data: dict[str, Any]
    fields: dict[str, list[Given]]


_RUN = {
    "run_config": {
        "name": "run",
        "storage_path": "/tmp/runs",
        "worker_runtime_env": {"env_vars": {"A": "1"}},
        "checkpoint_config": {"num_to_keep": 2, "checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"},
        "failure_config": {"max_failures": 1, "preemption_grace_s": 1.0},
    },
    "limits": {"timeout_s": 60.0, "max_attempts": 2},
    "runtime_env": {"env_vars": {"B": "2"}, "pip": ["numpy"]},
}
_LOOP = {
    "kind": "train",
    "run_config": {"name": "run"},
    "framework": "torch",
    "train_loop_per_worker": "tests.steps_for_tests:counting_loop",
    "train_loop_config": {"lr": 0.1, "layers": [64, 32]},
    "scaling_config": {"num_workers": 2, "resources_per_worker": {"CPU": 1}, "label_selector": {"zone": "a"}},
    "torch_config": {"backend": "gloo"},
    "seed": 1,
}
_DATA = {"path": "/data/x.csv", "columns": ["a", "b"], "split": {"part": "train", "test_size": 0.2, "by": ["a"]}}
_THREE = [
    {"type": "mlflow", "experiment_name": "e", "tags": {"a": "b"}},
    {"type": "wandb", "tags": ["a"]},
    {"type": "comet", "mode": "offline"},
]
_GATE = {"evaluate": "a:b", "must_beat": {"accuracy": {"mode": "max", "tolerance": 0.1}}}

BASES = [
    Base(
        "train",
        {**_LOOP, **_RUN, "datasets": {"train": _DATA, "made": {"function": "a:b", "kwargs": {"rows": 5}}}, "tracking": []},
        {**_SHARED, **_TRAIN},
    ),
    Base("tracked", {**_LOOP, "tracking": _THREE}, _TRACKERS),
    Base(
        "trees",
        {
            "run_config": {"name": "run"},
            **{"kind": "train", "framework": "xgboost", "params": {"max_depth": 3}, "label_column": "y"},
            **{"num_boost_round": 5, "early_stopping_rounds": 2, "checkpoint_frequency": 1},
            "datasets": {"train": "/data/x.csv", "valid": "/data/y.csv"},
        },
        _TREES,
    ),
    Base(
        "deepspeed",
        {**_LOOP, "framework": "deepspeed", "deepspeed_config": {"zero_optimization": {"stage": 2}}},
        _DEEPSPEED,
    ),
    Base(
        "tensorflow",
        {
            **{name: value for name, value in _LOOP.items() if name != "torch_config"},
            **{"framework": "tensorflow", "tensorflow_config": {"legacy_keras": True}},
        },
        _TENSORFLOW,
    ),
    Base(
        "evaluate",
        {
            **{"kind": "evaluate", **_RUN, "predictor": "a:b", "task": "classification", "checkpoint": "/c"},
            **{"dataset": _DATA, "config": {"size": 1}, "thresholds": {"accuracy": {"min": 0.5}}, "compare_to": "/d"},
            **{"must_beat": {"accuracy": {"tolerance": 0.1}}, "concurrency": 2, "slices": ["a"]},
        },
        {**_PREDICTING, **_EVALUATE},
    ),
    Base(
        "infer",
        {
            **{"kind": "batch_infer", **_RUN, "predictor": "a:b", "checkpoint": "/c", "dataset": _DATA},
            **{"output_path": "/out", "config": {"size": 1}, "concurrency": [1, 2], "key_column": "a"},
        },
        _INFER,
    ),
    Base(
        "tune",
        {
            **{"kind": "tune", **_RUN, "train": _LOOP, "metric": "loss", "mode": "min", "stop": {"loss": 0.1}},
            **{"param_space": {"train_loop_config": {"lr": {"uniform": [0, 1]}}}, "scheduler": "asha", "num_samples": 2},
        },
        {**_TUNE, **{f"train.{name}": given for name, given in _TRAIN.items() if not name.startswith("datasets")}},
    ),
    Base(
        "retrain",
        {**{"kind": "retrain", **_RUN, "model": "m", "alias": "champion", "train": _LOOP}, "evaluate": _GATE},
        {**_RETRAIN, **{f"evaluate.{name}": _JUDGING[name] for name in ("must_beat", "thresholds", "config", "num_gpus")}},
    ),
]


_KINDS = {"evaluate": "evaluate", "infer": "batch_infer", "tune": "tune", "retrain": "retrain"}


@dataclass(frozen=True)
class Mutation:
    """A spec with wrong or unusual values at these fields. `wrong`: whether it must be refused."""

    base: str
    fields: tuple[str, ...]
    given: tuple[Given, ...]
    data: dict[str, Any]

    @property
    def kind(self) -> str:
        """Of the spec, whatever the mutation says."""
        return {"evaluate": "evaluate", "infer": "batch_infer", "tune": "tune", "retrain": "retrain"}.get(
            self.base, "train"
        )

    @property
    def name(self) -> str:
        return f"{self.base} " + ", ".join(f"{f}: {g.name}" for f, g in zip(self.fields, self.given, strict=True))

    @property
    def wrong(self) -> bool:
        return any(given.wrong for given in self.given)

    @property
    def reason(self) -> str:
        return "; ".join(sorted({given.reason for given in self.given if given.reason}))

    @property
    def culprits(self) -> tuple[str, ...]:
        """The fields that a refusal may name."""
        return tuple(field for field, given in zip(self.fields, self.given, strict=True) if given.wrong)


def singles() -> Iterator[Mutation]:
    """Every field with every value of its kind."""
    for base in BASES:
        for field, values in base.fields.items():
            for given in values:
                yield Mutation(base.name, (field,), (given,), _with(base.data, {field: given.value}))
        for name, key in (("an unknown field", "nope"), ("a number as a field", 5), ("no field", None)):
            given = Given(name, 1)
            yield Mutation(base.name, (str(key) if key is not None else "None",), (given,), {**base.data, key: 1})


def pairs(seed: int, number: int) -> Iterator[Mutation]:
    """Two fields at once, of which at least one is wrong."""
    draw = random.Random(seed)
    for _ in range(number):
        base = draw.choice(BASES)
        first, second = draw.sample([*base.fields], 2)
        if first.startswith(second) or second.startswith(first):
            continue
        given = (draw.choice([g for g in base.fields[first] if g.wrong]), draw.choice(base.fields[second]))
        data = _with(base.data, {first: given[0].value, second: given[1].value})
        yield Mutation(base.name, (first, second), given, data)


def _with(data: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(data)
    for path, value in values.items():
        *folders, last = path.split(".")
        place: Any = changed
        for name in folders:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    return changed
