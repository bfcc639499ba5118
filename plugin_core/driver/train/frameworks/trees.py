"""Code shared by XGBoost and LightGBM for trainings declared by params, label_column and num_boost_round."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.errors import SpecError
from plugin_core.loops.upload import is_warm_start
from plugin_core.storage.scratch import scratch

if TYPE_CHECKING:
    from plugin_core.specs import TrainSpec

#: The default of `num_boost_round`: XGBoost's. (LightGBM's is 100; the spec has one default for both.)
DEFAULT_ROUNDS = 10
#: The default of `checkpoint_frequency`: the most rounds a kill can lose. Ray's own callbacks save only at the end.
CHECKPOINT_EVERY_ROUNDS = 10
_FILE = "rounds.json"


def trainer_arguments(
    spec: TrainSpec, inputs: TrainerInputs, declared_loop: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Arguments for a tree library's Ray trainer: the user's loop, or `declared_loop` with the spec's declaration.

    In a declared training, "train" is split among the workers, and each evaluates the other datasets whole: so all get the
    same exact metric and stop at the same round. Raises SpecError if a dataset lacks the label column.
    """
    if inputs.train_loop is not None:
        return {
            "train_loop_per_worker": inputs.train_loop,
            "train_loop_config": inputs.train_loop_config,
            **inputs.for_trainer(),
        }
    from ray.train import DataConfig

    for name, dataset in inputs.datasets.items():
        if spec.label_column not in (columns := dataset.columns() or []):
            raise SpecError(
                f"label_column: got {spec.label_column!r}, not found in dataset {name!r}; expected one of"
                f" {', '.join(columns)}"
            )
    config = {
        "callbacks": inputs.framework_callbacks,
        "params": {**({} if spec.seed is None else {"seed": spec.seed}), **(spec.params or {})},
        "label_column": spec.label_column,
        "num_boost_round": spec.num_boost_round or DEFAULT_ROUNDS,
        "early_stopping_rounds": spec.early_stopping_rounds,
        "checkpoint_frequency": spec.checkpoint_frequency or CHECKPOINT_EVERY_ROUNDS,
        # the other datasets use the bins of "train"; the last one decides when to stop
        "datasets": sorted(spec.datasets, key=lambda name: name != "train"),
    }
    return {
        "train_loop_per_worker": inputs.wrap(declared_loop),
        "train_loop_config": config,
        **inputs.for_trainer(),
        "dataset_config": DataConfig(datasets_to_split=["train"]),
    }


def frames(config: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Load this worker's shard of "train" and the other datasets whole: features and label of each, as pandas."""
    import ray.train

    found = {}
    for name in config["datasets"]:
        frame = ray.train.get_dataset_shard(name).materialize().to_pandas()
        found[name] = frame.drop(columns=[config["label_column"]]), frame[config["label_column"]]
    return found


@dataclass(frozen=True)
class Best:
    """The best round so far, counted from 1, by the early stopping metric."""

    round: int = 0
    score: float | None = None


class Rounds:
    """Reports each round, saves a checkpoint every `checkpoint_frequency` rounds and at the end, and decides when to stop.

    A declared training stops early when the last metric of the last dataset has not improved for `early_stopping_rounds`
    rounds (XGBoost's rule). If that is set, the last checkpoint is the best round's model, stopped early or not, and the
    last report has its `best_iteration` and `best_score`. This state is in each checkpoint, so a killed training stops at
    the same round as one that was not killed.
    """

    def __init__(self, config: dict[str, Any], model_file: str):
        import ray.train

        self._model_file = model_file
        self._last = config["num_boost_round"]
        self._every = config["checkpoint_frequency"]
        self._patience = config["early_stopping_rounds"]
        self._best = Best()
        self.done, self.over = 0, False
        self.checkpoint = ray.train.get_checkpoint()
        if self.checkpoint is not None and (kept := self._read(self.checkpoint)) is not None:
            self.done, self.over, self._best = kept

    def _read(self, checkpoint: Any) -> tuple[int, bool, Best] | None:
        """Read the state from a checkpoint of this run; None for another run's, which is only a warm start."""
        import ray.train

        with checkpoint.as_directory() as folder:
            file = Path(folder, _FILE)
            kept = json.loads(file.read_text()) if file.exists() else {}
        if is_warm_start(checkpoint) or kept.get("run") != ray.train.get_context().get_experiment_name():
            return None
        return kept["done"], kept["over"], Best(**kept["best"])

    @property
    def left(self) -> int:
        """How many rounds are left."""
        return 0 if self.over else max(0, self._last - self.done)

    def after_round(
        self, metrics: dict[str, float], higher_is_better: bool, save: Callable[[Path, int | None], None]
    ) -> bool:
        """Report a round; return whether it was the last. `save(file, n)` writes the model of this training's first n
        rounds (None: of all) to a file."""
        self.done += 1
        self.over = self._is_stale(metrics, higher_is_better) or self.done >= self._last
        metrics = {"iteration": self.done - 1, **metrics}
        if self.over and self._patience is not None:
            best = {"best_iteration": self._best.round - 1, "best_score": self._best.score}
            self._report({**metrics, **best}, save, self._best.round)
        elif self.over or self.done % self._every == 0:
            self._report(metrics, save, None)
        else:
            self._report(metrics)
        return self.over

    def _is_stale(self, metrics: dict[str, float], higher_is_better: bool) -> bool:
        if self._patience is None:
            return False
        if not metrics:
            raise ValueError(f"early_stopping_rounds: got {self._patience}, but params name no metric to go by")
        score = list(metrics.values())[-1]
        best = self._best.score
        if best is None or (score > best if higher_is_better else score < best):
            self._best = Best(self.done, score)
        return bool(self.done - self._best.round >= self._patience)

    def _report(
        self, metrics: dict[str, Any], save: Callable[[Path, int | None], None] | None = None, rounds: int | None = None
    ) -> None:
        import ray.train

        if save is None or ray.train.get_context().get_world_rank() != 0:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory(dir=scratch()) as folder:
            save(Path(folder, self._model_file), rounds)
            run = ray.train.get_context().get_experiment_name()
            kept = {"run": run, "done": self.done, "over": self.over, "best": asdict(self._best)}
            Path(folder, _FILE).write_text(json.dumps(kept))
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
