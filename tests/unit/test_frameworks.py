"""Frameworks by name: what fits which, what the cluster must have, and the rounds of declared training."""

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import ray.train

from plugin_core import TrainSpec, parse_spec
from plugin_core.driver.train.frameworks import trees, world
from plugin_core.driver.train.frameworks.build import require_packages, worker_environment
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.errors.classify import classify
from plugin_core.runs.spec_record import changed_fields, make_record
from plugin_core.specs.extras import require
from plugin_core.specs.frameworks import FRAMEWORKS

LOOP = "devtools.steps:counting_loop"
DATA = {"train": "train.parquet"}
DECLARED = {"params": {}, "label_column": "y", "datasets": DATA, "train_loop_per_worker": None}
ZERO = {"zero_optimization": {"stage": 3}}

BAD = {
    "unknown": ({"framework": "lightening"}, "framework: got 'lightening'; expected torch, lightning, "),
    "close": ({"framework": "lightening"}, "did you mean lightning?"),
    "DeepSpeed's JSON without DeepSpeed": (
        {"framework": "tensorflow", "deepspeed_config": ZERO},
        "deepspeed_config: got it with framework 'tensorflow'; only valid with lightning, transformers, accelerate,"
        " deepspeed",
    ),
    "TensorFlow's switch elsewhere": (
        {"tensorflow_config": {"legacy_keras": False}},
        "tensorflow_config: got it with framework 'torch'; only valid with tensorflow",
    ),
    "early stop of a network": (
        {"early_stopping_rounds": 3},
        "early_stopping_rounds: got it with framework 'torch'; only valid with xgboost, lightgbm",
    ),
    "ZeRO stage 4": (
        {"framework": "deepspeed", "deepspeed_config": {"zero_optimization": {"stage": 4}}},
        "deepspeed_config.zero_optimization.stage: got 4; expected 0, 1, 2, 3",
    ),
    "ZeRO by its number alone": (
        {"framework": "deepspeed", "deepspeed_config": {"zero_optimization": 3}},
        "deepspeed_config.zero_optimization: got 3; expected a mapping",
    ),
    "two half precisions": (
        {"framework": "deepspeed", "deepspeed_config": {"fp16": {"enabled": True}, "bf16": {"enabled": True}}},
        "deepspeed_config: got fp16 and bf16, both enabled; expected one of them",
    ),
    "batches that do not add up": (
        {
            "framework": "deepspeed",
            "deepspeed_config": {"train_batch_size": 100, "train_micro_batch_size_per_gpu": 16},
            "scaling_config": {"num_workers": 2},
        },
        "deepspeed_config.train_batch_size: got 100; expected 32, which is train_micro_batch_size_per_gpu 16 ×"
        " gradient_accumulation_steps 1 × 2 workers",
    ),
    "DeepSpeed's JSON twice": (
        {"framework": "deepspeed", "deepspeed_config": ZERO, "train_loop_config": {"deepspeed_config": ZERO}},
        "deepspeed_config: also in train_loop_config; expected it in one place",
    ),
    "objective without labels": (
        {"framework": "lightgbm", **DECLARED, "params": {"objective": "binary"}, "label_column": None},
        "label_column: missing; training declared by params needs it",
    ),
    "nothing to train on": (
        {"framework": "lightgbm", **DECLARED, "datasets": {"test": "test.parquet"}},
        "datasets: 'train' is missing",
    ),
    "rounds among the parameters": (
        {"framework": "lightgbm", **DECLARED, "params": {"num_iterations": 5}},
        "params.num_iterations: set it as the field num_boost_round of the spec instead",
    ),
    "early stop by nothing": (
        {"framework": "xgboost", **DECLARED, "early_stopping_rounds": 3},
        "early_stopping_rounds: got 3 with only the dataset 'train'; expected another one to evaluate on",
    ),
    "seed": ({"seed": -1}, "seed: got -1; expected a value greater than or equal to 0"),
    "backend": ({"torch_config": {"backend": "mpi"}}, "torch_config.backend: got 'mpi'; expected 'nccl'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence(case: str) -> None:
    data, words = BAD[case]
    with pytest.raises(SpecError) as caught:
        parse_spec({"train_loop_per_worker": LOOP, **data})
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_or_outdated_package_is_reported_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError) as caught:
        require("framework", "gone", "no_such_package", "gone")
    assert caught.value.message == (
        "framework: got 'gone', whose package no_such_package is not installed on the cluster;"
        " pip install 'ray-train-workflows[gone]'"
    )
    monkeypatch.setattr(metadata, "version", lambda name: {"lightgbm": "3.3.5"}[name])
    with pytest.raises(SpecError, match=r"whose package lightgbm is 3.3.5 on the cluster; expected 4.5 or newer; pip"):
        require_packages(TrainSpec(framework="lightgbm", train_loop_per_worker=LOOP))


def test_the_variant_for_cpus_counts_as_the_package() -> None:
    require("framework", "xgboost", "xgboost", "xgboost", "3.2")
    with pytest.raises(SpecError, match="whose package xgboost is 3"):
        require("framework", "xgboost", "xgboost", "xgboost", "99")


def test_extras_ask_for_the_oldest_versions_that_the_frameworks_do() -> None:
    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    for framework in FRAMEWORKS.values():
        bounds = dict(re.findall(r"([\w-]+)>=([\d.]+)", " ".join(extras.get(framework.name, []))))
        wanted = {name: oldest for name, oldest in framework.packages.items() if name != "horovod"}
        assert {name: bounds.get(name) for name in wanted} == wanted, framework.name


def test_workers_get_the_variables_that_must_be_set_before_the_import() -> None:
    def environment(framework: str, **fields: Any) -> dict[str, str]:
        return worker_environment(TrainSpec(framework=framework, train_loop_per_worker=LOOP, **fields))

    assert environment("tensorflow") == {"TF_USE_LEGACY_KERAS": "1"}
    assert environment("tensorflow", tensorflow_config={"legacy_keras": False}) == {"TF_USE_LEGACY_KERAS": "0"}
    assert environment("jax") == {"JAX_PLATFORMS": "cpu"}
    assert environment("jax", scaling_config={"use_gpu": True}) == {"JAX_PLATFORMS": "cuda"}
    assert environment("deepspeed") == {"DS_ACCELERATOR": "cpu"}
    assert environment("deepspeed", scaling_config={"use_gpu": True}) == {}
    assert environment("torch") == environment("xgboost") == {}


def test_tracking_and_rank_settings_may_change_between_tries() -> None:
    spec = TrainSpec(train_loop_per_worker=LOOP)
    other = spec.model_copy(update={"report_all_ranks": True, "world_check": False})
    assert changed_fields(make_record(spec)[0], make_record(other)[0]) == []
    assert changed_fields(make_record(spec)[0], make_record(spec.model_copy(update={"seed": 1}))[0]) == ["seed"]


def test_a_worker_that_trains_alone_fails_with_what_to_change() -> None:
    world._lightgbm_networks = 0
    with pytest.raises(world.WorldError) as caught:
        world.check("lightgbm", 2)
    assert caught.value.message.startswith(
        "scaling_config.num_workers: got 2, but each worker trains alone: LightGBM got no network parameters;"
        " to join them: params ="
    )
    assert isinstance(classify(caught.value), UserCodeError)
    world.check("lightgbm", 1)
    world.check("python", 2)


def test_workers_that_are_meant_to_work_alone_are_told_how_to_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over shards without collectives: wrapping the model would be wrong there."""
    why = "no collective operation was called in any process group"
    monkeypatch.setitem(world._CHECKS, "torch", lambda num_workers: why)
    with pytest.raises(world.WorldError) as caught:
        world.check("torch", 2)
    assert caught.value.message == (
        f"scaling_config.num_workers: got 2, but each worker trains alone: {why}; to join them: model ="
        " ray.train.torch.prepare_model(model), or fully_shard(model) (world_check=False if each is meant to work alone, on"
        " a shard of its own)"
    )


class LightGBMError(Exception):
    """As LightGBM's, which derives from nothing else."""


def test_a_wrong_parameter_is_a_user_error() -> None:
    assert not classify(LightGBMError("Unknown objective type name: binari")).retryable


class Context:
    def get_world_rank(self) -> int:
        return 0

    def get_experiment_name(self) -> str:
        return "run"


class Library:
    """A tree library's loop, and Ray's part in it, for `trees.Rounds`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self.folder, self.kept, self.reports = folder, None, []
        monkeypatch.setattr(ray.train, "get_context", Context)
        monkeypatch.setattr(ray.train, "get_checkpoint", lambda: self.kept)
        monkeypatch.setattr(ray.train, "report", self.report)

    def report(self, metrics: dict[str, Any], checkpoint: Any = None) -> None:
        self.reports.append(metrics)
        if checkpoint is not None:
            copy = self.folder / f"checkpoint-{len(self.reports)}"
            with checkpoint.as_directory() as source:
                Path(source).rename(copy)
            Path(source).mkdir()
            self.kept = ray.train.Checkpoint.from_directory(copy)

    def model(self) -> str:
        assert self.kept is not None
        return Path(self.kept.path, "model").read_text()

    def train(self, scores: list[float], until: int | None = None, **config: Any) -> None:
        """One process: from the checkpoint on, until it is over or, at a round, killed."""
        rounds = trees.Rounds(
            {"num_boost_round": 10, "checkpoint_frequency": 3, "early_stopping_rounds": None, **config}, "model"
        )
        while rounds.left:
            done = rounds.done
            if done == until:
                return

            def save(file: Path, first: int | None, done: int = done) -> None:
                file.write_text(f"{first or done + 1} rounds")

            if rounds.after_round({"test-auc": scores[done]}, True, save):
                return


SCORES = [0.5, 0.6, 0.9, 0.8, 0.8, 0.8, 0.95, 0.96, 0.97, 0.98]


def test_declared_training_checkpoints_every_so_many_rounds_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, monkeypatch)
    library.train(SCORES)
    assert [report["iteration"] for report in library.reports] == list(range(10))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"checkpoint-{n}" for n in (10, 3, 6, 9)]
    assert library.model() == "10 rounds"
    library.train(SCORES)
    assert len(library.reports) == 10, "what is over is not begun again"


@pytest.mark.parametrize("killed_at", [None, 4, 5])
def test_an_early_stop_is_the_same_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int | None
) -> None:
    library = Library(tmp_path, monkeypatch)
    if killed_at is not None:
        library.train(SCORES, until=killed_at, early_stopping_rounds=3)
    library.train(SCORES, early_stopping_rounds=3)
    assert library.reports[-1] == {"iteration": 5, "test-auc": 0.8, "best_iteration": 2, "best_score": 0.9}
    assert library.model() == "3 rounds", "the model of the best round"
    library.train(SCORES, early_stopping_rounds=3)
    assert library.reports[-1]["iteration"] == 5, "it stays over"


@pytest.mark.parametrize(("rounds", "best"), [(4, 3), (2, 2)])
def test_a_training_that_reaches_its_last_round_keeps_the_best_rounds_model_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, best: int
) -> None:
    library = Library(tmp_path, monkeypatch)
    library.train(SCORES, num_boost_round=rounds, early_stopping_rounds=3)
    last = {"iteration": rounds - 1, "best_iteration": best - 1, "best_score": SCORES[best - 1]}
    assert library.reports[-1] == {**last, "test-auc": SCORES[rounds - 1]}
    assert library.model() == f"{best} rounds"


def test_a_warm_start_boosts_all_its_rounds_on_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(tmp_path, monkeypatch)
    library.train(SCORES)
    file = Path(library.kept.path, "rounds.json")  # type: ignore[attr-defined]
    file.write_text(json.dumps({**json.loads(file.read_text()), "run": "another"}))
    library.train(SCORES)
    assert len(library.reports) == 20


def test_an_early_stop_needs_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Library(tmp_path, monkeypatch)
    rounds = trees.Rounds({"num_boost_round": 2, "checkpoint_frequency": 1, "early_stopping_rounds": 1}, "model")
    with pytest.raises(ValueError, match="early_stopping_rounds: got 1, but params name no metric to go by"):
        rounds.after_round({}, False, lambda file, first: None)
