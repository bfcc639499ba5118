"""XGBoost: the user's own loop, or training declared by params, label_column and num_boost_round."""

from __future__ import annotations

from typing import Any

from plugin_core.frameworks import TrainerInputs
from plugin_core.specs import TrainSpec

#: A checkpoint (and so the most that a kill can lose) every this many rounds; Ray's own callback saves only at the end.
CHECKPOINT_EVERY_ROUNDS = 10
#: xgboost.train's own default.
DEFAULT_ROUNDS = 10


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.xgboost import XGBoostTrainer

    loop, config = inputs.train_loop, inputs.train_loop_config
    if loop is None:
        loop = inputs.wrap(declared_loop)
        config = {
            "params": spec.params,
            "label_column": spec.label_column,
            "num_boost_round": spec.num_boost_round or DEFAULT_ROUNDS,
            "datasets": list(spec.datasets),
        }
    return XGBoostTrainer(
        loop,
        train_loop_config=config,
        scaling_config=inputs.scaling_config,
        run_config=inputs.run_config,
        datasets=inputs.datasets,
    )


def declared_loop(config: dict[str, Any]) -> None:
    """Boost `num_boost_round` rounds in all, going on from the run's checkpoint; every dataset is also evaluated."""
    import ray.train
    import xgboost
    from ray.train.xgboost import RayTrainReportCallback

    def matrix(name: str) -> xgboost.DMatrix:
        frame = ray.train.get_dataset_shard(name).materialize().to_pandas()
        label = config["label_column"]
        if label not in frame.columns:
            raise ValueError(f"label_column: given {label!r}, which dataset {name!r} has not")
        return xgboost.DMatrix(frame.drop(columns=[label]), label=frame[label])

    matrices = {name: matrix(name) for name in config["datasets"]}
    checkpoint = ray.train.get_checkpoint()
    model = RayTrainReportCallback.get_model(checkpoint) if checkpoint else None
    rounds = config["num_boost_round"] - (model.num_boosted_rounds() if model else 0)
    if rounds <= 0:
        return
    xgboost.train(
        config["params"],
        matrices["train"],
        num_boost_round=rounds,
        evals=[(data, name) for name, data in matrices.items()],
        xgb_model=model,
        verbose_eval=False,
        callbacks=[RayTrainReportCallback(frequency=CHECKPOINT_EVERY_ROUNDS)],
    )
