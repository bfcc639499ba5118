"""Coroutines from synchronous code, and blocking calls from coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
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
    """Run a coroutine from synchronous code, also where this thread already runs an event loop.

    From the main thread it runs in another one: an exception that a signal's handler raises there (an engine's time-out or
    termination) interrupts the wait, and the coroutine is cancelled. Inside a loop of the main thread it would end up in
    whatever callback happened to run, and asyncio would keep it to itself.
    """
    if threading.current_thread() is not threading.main_thread() and not _has_running_loop():
        return asyncio.run(coroutine)
    inner = _Elsewhere(coroutine)
    try:
        result: T = inner.future.result()
        return result
    except BaseException:
        inner.cancel()
        raise
    finally:
        inner.join()


async def in_own_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that runs in a loop and thread of its own, where neither signals nor blocking code touch it."""
    inner = _Elsewhere(coroutine)
    try:
        result: T = await asyncio.wrap_future(inner.future)
        return result
    except asyncio.CancelledError:
        inner.cancel()
        await asyncio.to_thread(inner.join)
        raise


class _Elsewhere:
    """A coroutine in a thread of its own, with this context's variables."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]):
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="raytrain")
        self.future = self._pool.submit(contextvars.copy_context().run, asyncio.run, self._work(coroutine))

    async def _work(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._running = (asyncio.get_running_loop(), task)
        if self._cancelled:
            task.cancel()
        return await coroutine

    def cancel(self) -> None:
        self._cancelled = True
        if self._running and not self.future.done():
            loop, task = self._running
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # it is over, and its loop closed

    def join(self) -> None:
        self._pool.shutdown()


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
