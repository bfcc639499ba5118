"""The key-value store of a Ray head, for workers and for a driver that has not called `ray.init` yet.

Packages uploaded to the Jobs API under /api/packages/gcs/NAME are stored there too, under `key(NAME)`.
"""

from __future__ import annotations

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]

TIMEOUT_S, DELETE_TIMEOUT_S = 10, 3
ERRORS = (ray.exceptions.RayError, RuntimeError, OSError)

_client: GcsClient | None = None


def key(name: str) -> str:
    return f"gcs://{name}"


def get(name: str, address: str) -> bytes | None:
    """The bytes stored under a name, or None. `put` and `delete` then use the same head."""
    global _client
    _client = GcsClient(address=address)
    found: bytes | None = _client.internal_kv_get(key(name).encode(), None, timeout=TIMEOUT_S)
    return found


def get_in_worker(name: str) -> bytes | None:
    """`get` through the existing connection of a process that Ray started."""
    from ray.experimental.internal_kv import _internal_kv_get

    found: bytes | None = _internal_kv_get(key(name))
    return found


def put(name: str, data: bytes, seconds: int) -> None:
    """Store the bytes; Ray deletes them `seconds` after the last call."""
    assert _client is not None
    _client.pin_runtime_env_uri(key(name), seconds, timeout=TIMEOUT_S)
    _client.internal_kv_put(key(name).encode(), data, True, None, timeout=TIMEOUT_S)


def delete(name: str) -> None:
    assert _client is not None
    _client.internal_kv_del(key(name).encode(), False, None, timeout=DELETE_TIMEOUT_S)


def put_in_driver(name: str, data: bytes) -> None:
    """Store the bytes through the existing connection of a process that Ray started."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key(name), data, overwrite=True)


def expire_in_driver(name: str, seconds: int) -> None:
    """Let Ray delete what is stored under a name in `seconds` seconds; 0: at once."""
    from ray.experimental.internal_kv import _internal_kv_del, _pin_runtime_env_uri

    if seconds:
        _pin_runtime_env_uri(key(name), expiration_s=seconds)
    else:
        _internal_kv_del(key(name))
