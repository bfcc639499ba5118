"""Batches of a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.loops.rows.indices import Items, length
from plugin_core.loops.rows.plan import Plan

#: DataLoader options that would change which rows come, or when.
_OURS = {
    "batch_sampler": "the order is that of `seed` and `shuffle`",
    "sampler": "the order is that of `seed` and `shuffle`",
    "drop_last": "no row is dropped",
    "in_order": "batches come in order",
}


class TorchRows(Items):
    """The batches of a `torch.utils.data.DataLoader` over a map-style dataset. Its workers read ahead; what they have read
    counts as used when it is handed out."""

    def __init__(self, dataset: Any, *, batch_size: int, seed: int, shuffle: bool, options: dict[str, Any]):
        from torch.utils.data import DataLoader, IterableDataset

        for name, why in _OURS.items():
            if name in options:
                raise SpecError(f"{name}: got {shown(options[name])}; expected none: {why}")
        if isinstance(dataset, IterableDataset):
            raise SpecError(
                f"dataset: got {type(dataset).__name__}, an IterableDataset, which cannot be read from the middle; expected"
                " a map-style dataset: one with __len__ and __getitem__"
            )
        length(dataset)
        super().__init__(dataset, batch_size=batch_size, seed=seed, shuffle=shuffle)
        self._steps = _Steps()
        self._loader = DataLoader(dataset, batch_sampler=self._steps, **options)

    def _batches(self, plan: Plan) -> Generator[Any]:
        self._steps.begin = self._indices(plan)
        start, stop = plan.offsets(0, self._rank)
        if start == stop:
            # `collate_fn` of no rows is undefined: it gets one row, which is cut off again
            self._steps.begin = lambda: iter([[0]])
            yield from map(without_rows, self._loader)
        else:
            yield from self._loader


class _Steps:
    """The DataLoader's batch sampler; one object for all epochs, so that `persistent_workers` survive."""

    begin: Callable[[], Iterator[list[int]]]

    def __iter__(self) -> Iterator[list[int]]:
        return self.begin()


def without_rows(batch: Any) -> Any:
    """The batch with each of its tensors cut to zero rows. Raises SpecError for a batch of anything else."""
    import torch

    if isinstance(batch, torch.Tensor) and batch.ndim:
        return batch[:0]
    if isinstance(batch, Mapping):
        return {name: without_rows(part) for name, part in batch.items()}
    if isinstance(batch, (list, tuple)):
        if all(isinstance(part, str | bytes) for part in batch):
            return []
        parts = [without_rows(part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    raise SpecError(
        f"dataset: got a batch of {type(batch).__name__}, which cannot be empty, and fewer rows than workers; expected a"
        " collate_fn that returns tensors, or dicts, lists and tuples of them"
    )
