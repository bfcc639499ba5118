"""Mutations of valid specs of all kinds: each field gets what its kind should refuse, and what it should take.

A field of this table is a path in one of the specs. A test sees to it that no field of a spec is missing here.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.fuzz.fields import (
    COMMAND,
    DEEPSPEED,
    EVALUATE,
    INFER,
    JOB,
    JUDGING,
    PREDICTING,
    RETRAIN,
    SHARED,
    SWITCHES,
    TENSORFLOW,
    TIER,
    TRACKERS,
    TRAIN,
    TREES,
    TUNE,
)
from tests.fuzz.values import Given


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
    "train_loop_per_worker": "devtools.steps:counting_loop",
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
        {**SHARED, **TRAIN},
    ),
    Base(
        "switches",
        {
            **_LOOP,
            "run_config": {"name": "run", "callbacks": ["a:b"], "failure_config": {"nccl_hang": {"action": "fail"}}},
            "hang_detection": {"action": "restart", "min_s": 60.0},
            "failure_policy": {
                "gpu_oom": {"action": "restart", "at_most": 2, "change": {"lr": {"times": 0.5}}},
                "nan_loss": {"back": 1, "metrics": ["loss"]},
            },
            "validation": {"fn": "a:b", "fn_kwargs": {"rows": 5}, "resources": {"CPU": 1}},
            "datasets": {"train": "/data/x.csv"},
            "data_config": "a:b",
            "deterministic": True,
            "torch_config": {"backend": "gloo", "fault_tolerance": "torchft", "lighthouse": {"min_replicas": 1}},
        },
        SWITCHES,
    ),
    Base("tracked", {**_LOOP, "tracking": _THREE}, TRACKERS),
    Base(
        "trees",
        {
            "run_config": {"name": "run"},
            **{"kind": "train", "framework": "xgboost", "params": {"max_depth": 3}, "label_column": "y"},
            **{"num_boost_round": 5, "early_stopping_rounds": 2, "checkpoint_frequency": 1},
            "framework_callbacks": ["a:b"],
            "datasets": {"train": "/data/x.csv", "valid": "/data/y.csv"},
        },
        TREES,
    ),
    Base(
        "deepspeed",
        {
            **{**_LOOP, "framework": "deepspeed", "deepspeed_config": {"zero_optimization": {"stage": 2}}},
            "run_config": {"name": "run", "checkpoint_config": {"local_tier": {"storage_every": 5}}},
        },
        {**DEEPSPEED, **TIER},
    ),
    Base(
        "tensorflow",
        {
            **{name: value for name, value in _LOOP.items() if name != "torch_config"},
            **{"framework": "tensorflow", "tensorflow_config": {"legacy_keras": True}},
        },
        TENSORFLOW,
    ),
    Base(
        "evaluate",
        {
            **{"kind": "evaluate", **_RUN, "predictor": "a:b", "task": "classification", "checkpoint": "/c"},
            **{"dataset": _DATA, "config": {"size": 1}, "thresholds": {"accuracy": {"min": 0.5}}, "compare_to": "/d"},
            **{"must_beat": {"accuracy": {"tolerance": 0.1}}, "concurrency": 2, "slices": ["a"]},
        },
        {**PREDICTING, **EVALUATE},
    ),
    Base(
        "infer",
        {
            **{"kind": "batch_infer", **_RUN, "predictor": "a:b", "checkpoint": "/c", "dataset": _DATA},
            **{"output_path": "/out", "config": {"size": 1}, "concurrency": [1, 2], "key_column": "a"},
        },
        INFER,
    ),
    Base(
        "tune",
        {
            **{"kind": "tune", **_RUN, "train": _LOOP, "metric": "loss", "mode": "min", "stop": {"loss": 0.1}},
            **{"param_space": {"train_loop_config": {"lr": {"uniform": [0, 1]}}}, "scheduler": "asha", "num_samples": 2},
        },
        {**TUNE, **{f"train.{name}": given for name, given in TRAIN.items() if not name.startswith("datasets")}},
    ),
    Base(
        "retrain",
        {**{"kind": "retrain", **_RUN, "model": "m", "alias": "champion", "train": _LOOP}, "evaluate": _GATE},
        {**RETRAIN, **{f"evaluate.{name}": JUDGING[name] for name in ("must_beat", "thresholds", "config", "num_gpus")}},
    ),
    Base(
        "job",
        {
            **{"kind": "ray_job", **_RUN, "function": "a:b", "arguments": {"size": 1}, "resources": {"memory": 1e9}},
            **{"task_resources": {"CPU": 2.0}},
        },
        JOB,
    ),
    Base("command", {"kind": "ray_job", **_RUN, "command": ["python", "x.py"], "num_gpus": 1}, COMMAND),
]


_KINDS = {
    "evaluate": "evaluate",
    "infer": "batch_infer",
    "tune": "tune",
    "retrain": "retrain",
    "job": "ray_job",
    "command": "ray_job",
}


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
        return _KINDS.get(self.base, "train")

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
