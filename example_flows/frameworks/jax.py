"""JAX: one program over the devices of all workers; each worker puts its own rows into the global batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="jax",
    train_loop_per_worker="example_flows.frameworks.jax:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.5, "batch_size": 32, "seed": 7},
    scaling_config=ScalingConfig(num_workers=2),
)


def scores(parameters: dict[str, Any], images: Any) -> Any:
    import jax

    hidden = jax.nn.relu(images @ parameters["w1"] + parameters["b1"])
    return hidden @ parameters["w2"] + parameters["b2"]


def train_loop(config: dict[str, Any]) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import ray.train
    from jax.sharding import NamedSharding, PartitionSpec

    from plugin_core.loops.upload import report

    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    by_row, everywhere = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())

    def loss_of(parameters: dict[str, Any], images: Any, labels: Any) -> Any:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(scores(parameters, images)), labels[:, None], axis=1)
        return -chosen.mean()

    @jax.jit
    def step(parameters: dict[str, Any], images: Any, labels: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, images, labels)
        return jax.tree.map(lambda value, slope: value - config["lr"] * slope, parameters, gradients), loss

    first, second = jax.random.split(jax.random.key(config["seed"]))
    parameters = {
        "w1": jax.random.normal(first, (64, 64)) / 8,
        "b1": jnp.zeros(64),
        "w2": jax.random.normal(second, (64, 10)) / 8,
        "b2": jnp.zeros(10),
    }
    first_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder, np.load(Path(folder, "parameters.npz")) as kept:
            parameters = {name: kept[name] for name in parameters}
            first_epoch = int(kept["epoch"]) + 1
    parameters = jax.device_put(jax.tree.map(np.asarray, parameters), everywhere)
    images, labels = data.own_rows(*data.digits("train"))
    tests = data.digits("test")

    for epoch in range(first_epoch, config["epochs"]):
        losses = []
        for rows in data.batches(len(images), config["batch_size"], epoch):
            batch = [jax.make_array_from_process_local_data(by_row, part[rows]) for part in (images, labels)]
            parameters, loss = step(parameters, *batch)
            losses.append(float(loss))
        whole = jax.tree.map(np.asarray, parameters)
        known = float((np.asarray(scores(whole, tests[0])).argmax(axis=1) == tests[1]).mean())

        def save(folder: Path, epoch: int = epoch, whole: dict[str, Any] = whole) -> None:
            np.savez(folder / "parameters.npz", epoch=epoch, **whole)

        writes = ray.train.get_context().get_world_rank() == 0
        report({"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": known}, save if writes else None)


def evaluate(checkpoint: Any) -> dict[str, float]:
    import numpy as np

    images, labels = data.digits("test")
    with checkpoint.as_directory() as folder, np.load(Path(folder, "parameters.npz")) as kept:
        found = np.asarray(scores(dict(kept), images))
    return {"accuracy": float((found.argmax(axis=1) == labels).mean())}
