"""TensorFlow and Keras: digits, like MNIST, under MultiWorkerMirroredStrategy; and the same loop as a regression."""

from __future__ import annotations

from typing import Any

from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="tensorflow",
    train_loop_per_worker="example_flows.frameworks.tensorflow:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)
REGRESSION = SPEC.model_copy(update={"train_loop_config": {**SPEC.train_loop_config, "task": "diabetes"}})


def build_model(task: str, lr: float) -> Any:
    from tensorflow import keras

    hidden = keras.layers.Dense(64, activation="relu")
    if task == "diabetes":
        model = keras.Sequential([keras.Input((10,)), hidden, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(lr), loss="mse")
    else:
        model = keras.Sequential([keras.Input((64,)), hidden, keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(lr), loss=loss, metrics=["accuracy"])
    return model


def train_loop(config: dict[str, Any]) -> None:
    import ray.train
    import tensorflow as tf
    from ray.train.tensorflow.keras import ReportCheckpointCallback

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = config.get("task", "digits")
    load = data.diabetes if task == "diabetes" else data.digits
    x, y = load("train")
    # a batch of the dataset is the global batch: the strategy gives each worker its rows, and its part of the batch
    batch_size = config["batch_size"] * ray.train.get_context().get_world_size()
    rows = len(x) // batch_size * batch_size
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    tests = load("test")
    test = tf.data.Dataset.from_tensor_slices(tests).batch(len(tests[0])).with_options(options)
    # epochs, not the optimizer's steps, whose number per epoch depends on the number of workers
    reported = ray.train.get_all_reported_checkpoints()
    first_epoch = reported[-1].metrics["epoch"] + 1 if reported else 0
    # each epoch has its own order, also after a resume; a single `shuffle` would start over with the first one's
    once = tf.data.Dataset.from_tensor_slices((x[:rows], y[:rows]))
    train = tf.data.Dataset.range(first_epoch, config["epochs"]).flat_map(
        lambda epoch: once.shuffle(rows, seed=epoch, reshuffle_each_iteration=False)
    )
    train = train.batch(batch_size, drop_remainder=True).with_options(options)
    checkpoint = ray.train.get_checkpoint()
    with strategy.scope():
        model = build_model(task, config["lr"])
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                model = tf.keras.models.load_model(f"{folder}/model.keras")
    model.fit(
        train,
        steps_per_epoch=rows // batch_size,
        validation_data=test,
        initial_epoch=first_epoch,
        epochs=config["epochs"],
        callbacks=[
            tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(epoch=epoch)),
            ReportCheckpointCallback(),
        ],
        verbose=0,
    )


def evaluate(checkpoint: Any, task: str = "digits") -> dict[str, float]:
    import tf_keras  # what `tf.keras` is in the workers

    with checkpoint.as_directory() as folder:
        model = tf_keras.models.load_model(f"{folder}/model.keras")
    x, y = (data.diabetes if task == "diabetes" else data.digits)("test")
    found = model.predict(x, verbose=0)
    if task == "diabetes":
        return {"val_loss": float(((found[:, 0] - y) ** 2).mean())}
    return {"val_accuracy": float((found.argmax(axis=1) == y).mean())}
