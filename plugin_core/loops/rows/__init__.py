"""Data that a resumed training continues to read at the row where its checkpoint was made. See docs/rows.md.
The other ways to give workers a dataset are in `driver.datasets`.

    batches = rows.from_torch(dataset, batch_size=32)
    for epoch in range(batches.epoch, 10):
        for step, batch in enumerate(batches):
            ...
            if step % 100 == 99:
                report({"loss": loss}, model, optimizer, rows=batches)

In each epoch, every row is used in exactly one of the steps that the training keeps, whatever is killed and however the
number of workers changes. Each function returns a `ResumableRows`; use it in place of samplers and `prepare_data_loader`.
All ranks must call it, with the same arguments. SpecError is raised for anything that cannot be resumed exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.loops.rows.resumable import Format
from plugin_core.loops.rows.resumable import ResumableRows as ResumableRows


def from_items(items: Sequence[Any], *, batch_size: int, seed: int = 0, shuffle: bool = True) -> ResumableRows:
    """Batches of a sequence's items, as lists; `range(n)` gives batches of indices."""
    from plugin_core.loops.rows.indices import Items

    return Items(items, batch_size=batch_size, seed=seed, shuffle=shuffle)


def from_torch(dataset: Any, *, batch_size: int, seed: int = 0, shuffle: bool = True, **options: Any) -> ResumableRows:
    """Batches of a `torch.utils.data.DataLoader` over a map-style dataset. `options` are the DataLoader's: `num_workers`,
    `collate_fn`, `pin_memory`, ..."""
    from plugin_core.loops.rows.torch_loader import TorchRows

    return TorchRows(dataset, batch_size=batch_size, seed=seed, shuffle=shuffle, options=options)


def read_parquet(
    paths: str | list[str],
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    columns: list[str] | None = None,
    filesystem: Any = None,
    batch_format: Format = "numpy",
) -> ResumableRows:
    """Batches of the rows of parquet files, streamed from a local path, a URI (docs/storage.md has the schemes) or a
    `pyarrow.fs.FileSystem`. What has been used is not read again.

    `paths`: files, or folders of *.parquet files. `batch_format` is that of `ray.data.Dataset.iter_batches`: "numpy" (a
    dict of arrays), "pandas" or "pyarrow". Raises StorageError if the files cannot be read.
    """
    from plugin_core.loops.rows.parquet import ParquetRows

    given = [paths] if isinstance(paths, str) else paths
    for name, value, least in (("paths", given, 1), ("columns", columns or [], 0)):
        if not isinstance(value, list) or len(value) < least or not all(isinstance(part, str) for part in value):
            raise SpecError(f"{name}: got {shown(value)}; expected a list of {name}")
    options: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle, "batch_format": batch_format}
    return ParquetRows(given, columns, filesystem, **options)


def from_dataset_shard(
    name: str = "train", *, batch_size: int, seed: int = 0, shuffle: bool = True, batch_format: Format = "numpy"
) -> ResumableRows:
    """Batches of the rows of the step's dataset `name`, which must have `DatasetConfig(resumable=True)`. Use it in
    place of `ray.train.get_dataset_shard(name).iter_batches(...)`."""
    from plugin_core.loops.rows.ray_data import RayRows

    return RayRows(name, batch_size=batch_size, seed=seed, shuffle=shuffle, batch_format=batch_format)
