"""Short digests of what a train function holds: tensors, arrays, nested state, batches, random numbers."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any


def digest(value: Any) -> str:
    """A digest that is equal for equal content: tensors, arrays, numbers, text, and mappings and sequences of them."""
    found = hashlib.sha256()
    _add(found, value)
    return found.hexdigest()[:16]


def _add(found: Any, value: Any) -> None:
    if hasattr(value, "to_local"):  # a sharded tensor
        value = value.to_local()
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        value = value.flatten()
        # some types, such as bfloat16, have no NumPy equivalent
        found.update(value.view(sys.modules["torch"].uint8).numpy().tobytes() if value.numel() else b"")
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
        # an array of objects has no content of its own in memory
        found.update(f"{value.dtype}{value.shape}".encode())
        if value.dtype.hasobject:
            _add(found, value.tolist())
        else:
            found.update(value.tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            found.update(f"{key}:".encode())
            _add(found, value[key])
    elif isinstance(value, (list, tuple)):
        found.update(f"[{len(value)}".encode())
        for item in value:
            _add(found, item)
    elif isinstance(value, (str, bytes, int, float, bool, type(None))):
        found.update(repr(value).encode())
    elif hasattr(value, "to_pydict"):  # a table of pyarrow
        _add(found, value.to_pydict())
    else:
        # an object's text may contain its address: only its type is sure to be the same in another process
        found.update(type(value).__qualname__.encode())


def random_states() -> dict[str, str]:
    """The state of the random numbers of each library that is imported."""
    import random

    found = {"python": digest(repr(random.getstate()))}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = digest(repr(numpy.random.get_state()))
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = digest(torch.random.get_rng_state())
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found["cuda"] = digest(torch.cuda.get_rng_state())
    return found
