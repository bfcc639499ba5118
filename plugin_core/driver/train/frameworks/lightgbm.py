"""LightGBM: the user's own loop, or a training declared by params, label_column and num_boost_round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.driver.train.frameworks.trees import Rounds, frames, trainer_arguments
from plugin_core.loops.lightgbm import get_model
from plugin_core.specs import TrainSpec


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.lightgbm import LightGBMTrainer

    return LightGBMTrainer(**trainer_arguments(spec, inputs, declared_loop))


def declared_loop(config: dict[str, Any]) -> None:
    """Boost `num_boost_round` rounds in total, resuming from the run's checkpoint, and evaluate every dataset; "train" only
    on this worker's shard, since LightGBM does not aggregate metrics."""
    import lightgbm
    import ray.train
    from ray.train.lightgbm import RayTrainReportCallback, get_network_params, normalize_pandas_for_lightgbm

    rounds = Rounds(config, RayTrainReportCallback.CHECKPOINT_NAME)
    if not rounds.left:
        return
    params = {"verbosity": -1, **config["params"]}
    if ray.train.get_context().get_world_size() > 1:
        params = {"tree_learner": "data_parallel", "pre_partition": True, **params, **get_network_params()}
    data: dict[str, Any] = {}
    for name, (features, label) in frames(config).items():
        features = normalize_pandas_for_lightgbm(features)
        data[name] = lightgbm.Dataset(features, label=label.to_numpy(), reference=data.get("train"))
    model = get_model(rounds.checkpoint) if rounds.checkpoint else None
    before = model.current_iteration() - rounds.done if model else 0

    def report(env: Any) -> None:
        found = env.evaluation_result_list
        metrics = {f"{name}-{metric}": value for name, metric, value, *_ in found}

        def save(file: Path, first: int | None) -> None:
            env.model.save_model(file, num_iteration=-1 if first is None else before + first)

        higher = bool(found) and found[-1][3]
        if rounds.after_round(metrics, higher, save) and env.iteration + 1 < env.end_iteration:
            raise lightgbm.callback.EarlyStopException(env.iteration, found)

    lightgbm.train(
        params,
        data["train"],
        num_boost_round=rounds.left,
        valid_sets=list(data.values()),
        valid_names=list(data),
        init_model=model,
        callbacks=[*(made() for made in config["callbacks"]), report],
    )
