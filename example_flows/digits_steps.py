"""scikit-learn's handwritten digits, step by step: the data, the train loop, the evaluation and the predictor.

The flow (`digits.py`), the DAG (`example_dags/digits.py`) and the command line (`digits.yaml`) all use these functions as
they are. Heavy libraries are imported inside them: an engine reads this file often and never needs torch.
"""

from __future__ import annotations

from typing import Any

from example_flows.tables import write_tables

TEST_FRACTION = 0.2
SEED = 7


#: Data that comes month by month, for the retraining examples: (the available share of the training digits, how many in
#: ten have a wrong label). February's is better than January's, March's is corrupted. The test data stays the same.
MONTHS = {"january": (0.25, 0), "february": (1.0, 0), "march": (1.0, 6)}


def make_data(folder: str, month: str = "february") -> dict[str, str]:
    """Write `train.parquet` and `test.parquet` under `folder`, a local path or an s3:// URI; returns where they are.

    The data is the same every time, and an existing file is left alone, so a retry costs nothing.
    """
    return write_tables(folder, {name: table(name, month) for name in ("train", "test")})


def table(part: str, month: str = "february") -> Any:
    """The digits of "train" or "test" as an arrow table: `image`, 64 float32 from 0 to 1 (8 × 8 pixels), and `label`."""
    import numpy as np
    import pyarrow as pa
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=TEST_FRACTION, random_state=SEED, stratify=labels)
    share, wrong = MONTHS[month]
    rows = {"train": train[: int(share * len(train))], "test": test}[part]
    if part == "train":
        labels[rows[np.arange(len(rows)) % 10 < wrong]] = 0
    pixels = pa.array((images[rows] / 16.0).astype(np.float32).reshape(-1))
    image = pa.FixedSizeListArray.from_arrays(pixels, images.shape[1])
    return pa.table({"image": image, "label": pa.array(labels[rows].astype(np.int64))})


def dataset(part: str) -> Any:
    """The same as a Ray Dataset, without a file; `digits.yaml` names it."""
    import ray.data

    return ray.data.from_arrow(table(part))


def build_model() -> Any:
    """A small convolutional network: 64 pixels in, 10 scores out."""
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train_loop(config: dict[str, Any]) -> None:
    """One worker of the training: resumes from the run's last checkpoint, reports once per epoch.

    From another run's checkpoint (`resume_from`: a warm start), it takes only the weights, and counts epochs from 0.
    `config`: `epochs`, `lr`, `batch_size` (per worker).
    """
    import ray.train
    import torch
    from ray.train.torch import get_device, prepare_model

    from plugin_core.loops.torch import report, restore

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    device = get_device()
    model = prepare_model(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    first_epoch = restore(model, optimizer).get("epoch", -1) + 1
    # the digits fit into memory: read them once, not once per epoch
    data = ray.train.get_dataset_shard("train").materialize()

    for epoch in range(first_epoch, config["epochs"]):
        losses = []
        batches = data.iter_torch_batches(
            batch_size=config["batch_size"], device=device, local_shuffle_buffer_size=500, local_shuffle_seed=epoch
        )
        for batch in batches:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        report({"epoch": epoch, "loss": sum(losses) / len(losses)}, model, optimizer)


def load_model(checkpoint: Any) -> Any:
    """The trained network from a `ray.train.Checkpoint`, on the CPU and ready to predict."""
    import torch

    from plugin_core.loops.torch import load

    torch.set_num_threads(1)
    return load(checkpoint, build_model())


def evaluate(checkpoint: Any, dataset: Any, config: dict[str, Any]) -> dict[str, float]:
    """Accuracy on `dataset`."""
    predict = Predictor(checkpoint)
    rows = correct = 0
    for batch in dataset.iter_batches(batch_size=config.get("batch_size", 512), batch_format="numpy"):
        rows += len(batch["label"])
        correct += int((predict(batch)["prediction"] == batch["label"]).sum())
    return {"accuracy": correct / rows, "rows": rows}


class Predictor:
    """Adds the column `prediction` to a batch; built once per actor, which loads the model once."""

    def __init__(self, checkpoint: Any):
        self._model = load_model(checkpoint)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy as np
        import torch

        with torch.inference_mode():
            scores = self._model(torch.as_tensor(np.stack(batch["image"])))
        return {**batch, "prediction": scores.argmax(dim=1).numpy()}
