"""One training, one way: `python -m benchmarks.frameworks_ways FRAMEWORK WAY WORKERS FILE`; see `frameworks`. Rank 0 writes
the median seconds of its steps (TensorFlow) or boosting rounds to FILE.

`native` starts the workers with what the framework itself has for that: TF_CONFIG, XGBoost's tracker, LightGBM's list of
machines.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from plugin_core.clusters.local_head_keeper import free_ports

#: Each worker's rows and their columns, so that a boosting round takes more than 250 ms of a core.
ROWS, COLUMNS = 2_000_000, 28
#: How many rounds and steps are timed; the first ones, which also build things, are not.
ROUNDS, STEPS, WARM_UP = 8, 400, 3
TRAINERS = {"tensorflow": "TensorflowTrainer", "xgboost": "XGBoostTrainer", "lightgbm": "LightGBMTrainer"}


def rows(rank: int) -> tuple[Any, Any]:
    import numpy as np

    random = np.random.default_rng(rank)
    x = random.random((ROWS, COLUMNS), dtype=np.float32)
    return x, x[:, :7].sum(axis=1) + x[:, 7] * x[:, 8]


def median_of(times: list[float]) -> float:
    """The median time between two entries, after the warm-up."""
    times = times[WARM_UP:]
    return statistics.median(after - before for before, after in itertools.pairwise(times))


def xgboost(rank: int, network: dict[str, Any]) -> float:
    import xgboost

    class Clock(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            times.append(time.perf_counter())
            return False

    times: list[float] = []
    params = {"objective": "reg:squarederror", "tree_method": "hist", "max_depth": 8, "nthread": 1}
    with xgboost.collective.CommunicatorContext(**network) if network else contextlib.nullcontext():
        xgboost.train(params, xgboost.DMatrix(*rows(rank), nthread=1), WARM_UP + ROUNDS, callbacks=[Clock()])
    return median_of(times)


def lightgbm(rank: int, network: dict[str, Any]) -> float:
    import lightgbm

    times: list[float] = []
    params = {"objective": "regression", "num_leaves": 255, "num_threads": 1, "verbose": -1, **network}
    if network:
        params |= {"tree_learner": "data", "pre_partition": True}
    callbacks = [lambda _: times.append(time.perf_counter())]
    lightgbm.train(params, lightgbm.Dataset(*rows(rank)), WARM_UP + ROUNDS, callbacks=callbacks)
    return median_of(times)


def tensorflow(rank: int, network: dict[str, Any]) -> float:
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras

    tf.config.threading.set_intra_op_parallelism_threads(1)
    keras.utils.set_random_seed(0)
    times: list[float] = []
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        layers = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(10)])
        model.compile("sgd", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones((256, 256), np.float32), np.zeros(256, np.int64)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = tf.data.Dataset.from_tensors((x, y)).repeat().with_options(options)
    clock = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: times.append(time.perf_counter()))
    model.fit(data, steps_per_epoch=WARM_UP + STEPS, verbose=0, callbacks=[clock])
    return (times[-1] - times[WARM_UP]) / (len(times) - 1 - WARM_UP)


LOOPS = {"tensorflow": tensorflow, "xgboost": xgboost, "lightgbm": lightgbm}


def train(framework: str, rank: int, network: dict[str, Any], file: str) -> None:
    took = LOOPS[framework](rank, network)
    if rank == 0:
        Path(file).write_text(json.dumps(took))


def train_loop(config: dict[str, Any]) -> None:
    """The loop of Ray Train's workers, in which Ray has set the framework up."""
    import ray.train

    network = {}
    if config["framework"] == "lightgbm":
        from ray.train.lightgbm import get_network_params

        network = get_network_params()
    train(config["framework"], ray.train.get_context().get_world_rank(), network, config["file"])


def native(framework: str, workers: int, file: Path) -> None:
    ports = free_ports(workers)
    places = [f"127.0.0.1:{port}" for port in ports]
    networks: list[dict[str, Any]] = [{} for _ in places]
    environments: list[dict[str, str]] = [{} for _ in places]
    if framework == "tensorflow":
        tasks = [{"cluster": {"worker": places}, "task": {"type": "worker", "index": rank}} for rank in range(workers)]
        environments = [{"TF_CONFIG": json.dumps(task)} for task in tasks]
    elif framework == "xgboost" and workers > 1:
        from xgboost.tracker import RabitTracker

        tracker = RabitTracker(host_ip="127.0.0.1", n_workers=workers)
        tracker.start()
        threading.Thread(target=tracker.wait_for, daemon=True).start()
        networks = [dict(tracker.worker_args()) for _ in places]
    elif framework == "lightgbm" and workers > 1:
        machines = {"machines": ",".join(places), "num_machines": workers}
        networks = [{**machines, "local_listen_port": port} for port in ports]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.frameworks_ways",
                framework,
                "worker",
                str(rank),
                json.dumps(network),
                str(file),
            ],
            env={**os.environ, **environment},
        )
        for rank, (network, environment) in enumerate(zip(networks, environments, strict=True))
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise RuntimeError(f"{framework}: a worker failed")


def bare(framework: str, workers: int, file: Path) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig

    ray.init(num_cpus=4, include_dashboard=False)
    trainer = getattr(importlib.import_module(f"ray.train.{framework}"), TRAINERS[framework])
    trainer(
        train_loop,
        train_loop_config={"framework": framework, "file": str(file)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path=str(file.parent)),
    ).fit()


def step(framework: str, workers: int, file: Path) -> None:
    from plugin_core import RunConfig, ScalingConfig, TrainSpec, run

    spec = TrainSpec(
        framework=framework,
        train_loop_per_worker="benchmarks.frameworks_ways:train_loop",
        train_loop_config={"framework": framework, "file": str(file)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="run", storage_path=str(file.parent)),
    )
    run(spec, progress=False)


if __name__ == "__main__":
    given, way, number, *rest = sys.argv[1:]
    if way == "worker":
        train(given, int(number), json.loads(rest[0]), rest[1])
    else:
        {"native": native, "bare": bare, "step": step}[way](given, int(number), Path(rest[0]))
