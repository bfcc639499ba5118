"""The examples' loops with kills in them, and the proof that their workers formed one world."""

from __future__ import annotations

import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any

#: The strategy that TensorFlow's example made in this process.
STRATEGIES: list[Any] = []


def mortal(config: dict[str, Any]) -> None:
    """The example's loop with kills, one report for each worker group. The first group loses rank 1 to a SIGKILL. The
    second one fails, and with it the attempt. The third one, if there is only one worker, waits for a second. The last one
    runs to the end, and reports the sum of its ranks."""
    import ray.train
    from ray.train.v2._internal.execution import train_fn_utils

    marks = Path(config["marks"])
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    utils = train_fn_utils.get_train_fn_utils()
    report = utils.report
    group = sum((marks / mark).exists() for mark in ("killed", "failed"))

    def fateful(*args: Any, **kwargs: Any) -> None:
        # before the report, in which all ranks wait for each other: afterwards, one rank's end may end the others
        (marks / f"group-{group}-{rank}-of-{world}").touch()
        report(*args, **kwargs)
        if group < 2:
            # every rank's report must be registered first, or one more interval would be lost
            ray.train.get_all_reported_checkpoints(ray.train.CheckpointConsistencyMode.COMMITTED)
        if group == 0 and rank == 1:
            (marks / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if group == 1:
            (marks / "failed").touch()
            raise RuntimeError("the end of the first session")
        if world == 1:
            (marks / "waiting").touch()
            while True:
                time.sleep(1)

    utils.report = fateful  # type: ignore[method-assign]
    joined(config)


def joined(config: dict[str, Any]) -> None:
    """The example's loop, and the sum of its ranks."""
    import ray.train

    if config["framework"] == "tensorflow":
        _keep_strategy()
    loop(config)
    rank = ray.train.get_context().get_world_rank()
    Path(config["marks"], f"world-{rank}").write_text(str(SUMS[config["framework"]](config)))


def loop(config: dict[str, Any]) -> None:
    module, _, name = config["loop"].partition(":")
    getattr(importlib.import_module(module), name)(config["config"])


def _torch(config: dict[str, Any]) -> int:
    import torch
    import torch.distributed as dist

    ranks = torch.tensor(dist.get_rank())
    dist.all_reduce(ranks)
    return int(ranks)


def _keep_strategy() -> None:
    """Keep the strategy that the loop makes: the collectives of a second one in this process would have the same
    numbers as the first one's, which TensorFlow has usually, but not always, forgotten by then."""
    import tensorflow as tf

    make = tf.distribute.MultiWorkerMirroredStrategy.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        STRATEGIES.append(self)

    tf.distribute.MultiWorkerMirroredStrategy.__init__ = made


def _tensorflow(config: dict[str, Any]) -> int:
    import tensorflow as tf

    (strategy,) = STRATEGIES
    rank = float(strategy.cluster_resolver.task_id)
    ranks = strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(rank))
    )
    return int(ranks)


def _xgboost(config: dict[str, Any]) -> int:
    import numpy as np
    import xgboost

    return int(xgboost.collective.allreduce(np.array([xgboost.collective.get_rank()]), xgboost.collective.Op.SUM)[0])


def _lightgbm(config: dict[str, Any]) -> int:
    """LightGBM offers no collective, but the root of a tree counts the rows of all workers, or only of this one."""
    import ray.train
    from sklearn.datasets import load_breast_cancer

    from example_flows.frameworks.data import split
    from plugin_core.loops.lightgbm import get_model

    last = ray.train.get_all_reported_checkpoints()[-1].checkpoint
    tree = get_model(last).dump_model()["tree_info"][0]["tree_structure"]
    # counted without Ray Data, which would wait for a CPU: the workers may hold all of them
    rows, _ = split(*load_breast_cancer(return_X_y=True), "train")
    return int(tree["internal_count"] == len(rows))


def _horovod(config: dict[str, Any]) -> int:
    import horovod.torch as hvd
    import torch

    return int(hvd.allreduce(torch.tensor(hvd.rank()), op=hvd.Sum))


def _jax(config: dict[str, Any]) -> int:
    import jax
    from jax.experimental import multihost_utils

    return int(multihost_utils.process_allgather(jax.numpy.array(jax.process_index())).sum())


#: Framework → the sum of ranks 0 and 1, by its own collective.
SUMS = {
    **dict.fromkeys(("torch", "lightning", "transformers", "accelerate", "deepspeed"), _torch),
    "tensorflow": _tensorflow,
    "xgboost": _xgboost,
    "lightgbm": _lightgbm,
    "horovod": _horovod,
    "jax": _jax,
}


# ---- loops that never join


def alone_torch(config: dict[str, Any]) -> None:
    """A model not wrapped by `prepare_model`."""
    import ray.train
    import torch

    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    ray.train.report({"loss": 1.0})


def alone_accelerate(config: dict[str, Any]) -> None:
    """`Accelerator()` without a GPU."""
    import ray.train
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    accelerator.prepare(torch.nn.Linear(2, 1))
    ray.train.report({"loss": 1.0})


def alone_fsdp(config: dict[str, Any]) -> None:
    """A plugin for FSDP that Accelerate ignores on CPUs."""
    import ray.train
    import torch
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin())
    accelerator.prepare(torch.nn.Linear(2, 1))
    ray.train.report({"loss": 1.0})


def alone_zero(config: dict[str, Any]) -> None:
    """A plugin for DeepSpeed that Accelerate ignores when it is told to use CPUs."""
    import ray.train
    import torch
    from accelerate import Accelerator, DeepSpeedPlugin

    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(zero_stage=3))
    accelerator.prepare(torch.nn.Linear(2, 1))
    ray.train.report({"loss": 1.0})


def alone_transformers(config: dict[str, Any]) -> None:
    """`TrainingArguments` without `use_cpu`."""
    from transformers import Trainer, TrainingArguments

    from example_flows.frameworks import transformers as example
    from plugin_core.loops.transformers import train

    arguments = TrainingArguments(output_dir=config["folder"], max_steps=2, save_strategy="epoch", report_to="none")
    rows = [{key: row[key][:8] if key != "labels" else row[key] for key in row} for row in example.examples("train")[:32]]
    train(Trainer(model=example.build_model(), args=arguments, train_dataset=rows))


def alone_lightning(config: dict[str, Any]) -> None:
    """A Trainer without Ray's strategy."""
    import lightning
    import ray.train
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from example_flows.frameworks import data
    from example_flows.frameworks.lightning import build_module

    trainer = lightning.Trainer(max_steps=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    trainer.fit(build_module(0.1), DataLoader(TensorDataset(*(torch.as_tensor(part) for part in data.digits("train")))))
    ray.train.report({"loss": 1.0})


def alone_tensorflow(config: dict[str, Any]) -> None:
    """A model outside any strategy."""
    import ray.train

    from example_flows.frameworks.tensorflow import build_model

    build_model("digits", 0.1)
    ray.train.report({"loss": 1.0})


def alone_lightgbm(config: dict[str, Any]) -> None:
    """`lightgbm.train` without the network parameters."""
    import lightgbm
    import numpy as np
    import ray.train

    lightgbm.train({"verbosity": -1}, lightgbm.Dataset(np.random.rand(100, 2), label=np.arange(100)), 2)
    ray.train.report({"loss": 1.0})


def alone_horovod(config: dict[str, Any]) -> None:
    """A loop that does not call `hvd.init()`."""
    import ray.train

    ray.train.report({"loss": 1.0})


def alone_deepspeed(config: dict[str, Any]) -> None:
    """A model not passed to `deepspeed.initialize`."""
    alone_torch(config)
