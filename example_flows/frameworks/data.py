"""What the examples train on: data that ships with packages, or is generated here."""

from __future__ import annotations

from typing import Any

SEED = 7


def split(x: Any, y: Any, part: str) -> tuple[Any, Any]:
    """The rows of "train" or "test", always the same ones."""
    from sklearn.model_selection import train_test_split

    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=SEED)
    return (x_train, y_train) if part == "train" else (x_test, y_test)


def digits(part: str) -> tuple[Any, Any]:
    """scikit-learn's digits: images of 64 float32 from 0 to 1 (8 × 8 pixels), and labels 0 to 9."""
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return split((images / 16).astype(np.float32), labels.astype(np.int64), part)


def digit_rows(part: str) -> Any:
    """The same as a Ray Dataset: `image` and `label`."""
    import ray.data

    images, labels = digits(part)
    return ray.data.from_items([{"image": image, "label": label} for image, label in zip(images, labels, strict=True)])


def own_rows(x: Any, y: Any) -> tuple[Any, Any]:
    """This worker's rows, the same number on every worker."""
    import ray.train

    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    rows = len(x) // workers * workers
    return x[rank:rows:workers], y[rank:rows:workers]


def own_tensors(part: str = "train") -> tuple[Any, Any]:
    """This worker's digits as torch tensors."""
    import torch

    images, labels = own_rows(*digits(part))
    return torch.as_tensor(images), torch.as_tensor(labels)


def batches(rows: int, batch_size: int, epoch: int) -> list[Any]:
    """The row numbers of each batch, in an order of the epoch's own; leftover rows are dropped."""
    import numpy as np

    order = np.random.default_rng(epoch).permutation(rows)
    return [order[start : start + batch_size] for start in range(0, rows - batch_size + 1, batch_size)]


def accuracy_of(model: Any) -> float:
    """The share of the test digits that a torch model on the CPU classifies correctly."""
    import torch

    images, labels = (torch.as_tensor(part) for part in digits("test"))
    with torch.inference_mode():
        return float((model(images).argmax(dim=1) == labels).float().mean())


GOOD = ("great", "lovely", "brilliant", "moving", "funny")
BAD = ("awful", "dull", "boring", "clumsy", "noisy")
OTHER = ("the", "film", "was", "and", "music", "acting", "story", "very", "quite", "rather")


def reviews(part: str, count: int = 480) -> tuple[list[str], list[int]]:
    """Generated reviews of eight words, and whether each is kind: whether it has more good words than bad ones."""
    import numpy as np

    random = np.random.default_rng(SEED)
    texts, labels = [], []
    for _ in range(count):
        good = int(random.integers(0, 4))
        bad = 3 - good
        words = [*random.choice(GOOD, good), *random.choice(BAD, bad), *random.choice(OTHER, 5)]
        texts.append(" ".join(random.permutation(words)))
        labels.append(int(good > bad))
    return split(texts, labels, part)


def tumours(part: str) -> Any:
    """scikit-learn's breast_cancer as a Ray Dataset: 30 features and `target`, 1 for benign."""
    import ray.data
    from sklearn.datasets import load_breast_cancer

    features, target = load_breast_cancer(return_X_y=True, as_frame=True)
    x, y = split(features, target, part)
    return ray.data.from_pandas(x.assign(target=y).reset_index(drop=True))


def diabetes(part: str) -> tuple[Any, Any]:
    """scikit-learn's diabetes: 10 features, and the disease progression, scaled to mean 0 and standard deviation 1."""
    import numpy as np
    from sklearn.datasets import load_diabetes

    features, target = load_diabetes(return_X_y=True)
    features = features / features.std(axis=0)
    return split(features.astype(np.float32), ((target - target.mean()) / target.std()).astype(np.float32), part)
