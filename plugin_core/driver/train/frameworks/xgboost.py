"""XGBoost: the user's own loop, or a training declared by params, label_column and num_boost_round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.driver.train.frameworks.trees import Rounds, frames, trainer_arguments
from plugin_core.loops.xgboost import get_model
from plugin_core.specs import TrainSpec

#: Prefixes of metrics for which higher is better: the list in `xgboost.callback.EarlyStopping`.
_HIGHER_IS_BETTER = ("auc", "pre", "map", "ndcg")


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.xgboost import XGBoostTrainer

    return XGBoostTrainer(**trainer_arguments(spec, inputs, declared_loop))


def declared_loop(config: dict[str, Any]) -> None:
    """Boost `num_boost_round` rounds in total, resuming from the run's checkpoint, and evaluate every dataset."""
    import xgboost
    from ray.train.xgboost import RayTrainReportCallback

    rounds = Rounds(config, RayTrainReportCallback.CHECKPOINT_NAME)
    if not rounds.left:
        return
    data = {name: xgboost.DMatrix(features, label=label) for name, (features, label) in frames(config).items()}
    model = get_model(rounds.checkpoint) if rounds.checkpoint else None
    before = model.num_boosted_rounds() - rounds.done if model else 0

    class Report(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: dict[str, dict[str, list[float]]]) -> bool:
            metrics = {f"{name}-{key}": values[-1] for name, log in evals_log.items() for key, values in log.items()}
            last = [key for log in evals_log.values() for key in log][-1:]
            higher = bool(last) and last[0] != "mape" and last[0].startswith(_HIGHER_IS_BETTER)

            def save(file: Path, first: int | None) -> None:
                (model if first is None else model[: before + first]).save_model(file)

            return rounds.after_round(metrics, higher, save)

    xgboost.train(
        config["params"],
        data["train"],
        num_boost_round=rounds.left,
        evals=[(matrix, name) for name, matrix in data.items()],
        xgb_model=model,
        verbose_eval=False,
        callbacks=[*(made() for made in config["callbacks"]), Report()],
    )
