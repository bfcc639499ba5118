"""Coroutines from synchronous code, and blocking calls from coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

#: Storage calls at once in one process. They wait rather than compute: with asyncio's own few threads a hundred runs on a
#: storage of 50 ms a call are read too slowly (benchmarks/triggerer.py).
THREADS = 64
_pool: ThreadPoolExecutor | None = None


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a blocking call, which runs in one of this process's threads for storage."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(THREADS, thread_name_prefix="raytrain-storage")
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_pool, lambda: context.run(function, *arguments))


def _forget_pool() -> None:
    global _pool
    _pool = None


# a pool's threads do not survive a fork, and Airflow and Prefect fork
os.register_at_fork(after_in_child=_forget_pool)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, also from inside a thread that already runs an event loop."""
    if not _has_running_loop():
        return asyncio.run(coroutine)
    inner: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def work() -> T:
        task = asyncio.current_task()
        assert task is not None
        inner.append((asyncio.get_running_loop(), task))
        return await coroutine

    with ThreadPoolExecutor(1, thread_name_prefix="raytrain") as pool:
        future = pool.submit(contextvars.copy_context().run, asyncio.run, work())
        try:
            return future.result()
        except BaseException:
            # an engine interrupts this thread; the coroutine in the other one has to be told
            if inner and not future.done():
                loop, task = inner[0]
                loop.call_soon_threadsafe(task.cancel)
            raise


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
