"""Coroutines from synchronous code, and blocking calls from coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
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
        inner.start()
        inner.join()
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
        inner.start()
        result: T = await asyncio.wrap_future(inner.future)
        return result
    except asyncio.CancelledError:
        inner.cancel()
        await asyncio.to_thread(inner.join)
        raise


class _Elsewhere:
    """A coroutine in a thread of its own, with this context's variables.

    A signal's exception may interrupt the main thread at any point of starting, waiting and cancelling. So these hold no
    lock that the thread needs (a condition of `concurrent.futures` may stay locked when its `with` is interrupted).
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any]):
        self._coroutine = coroutine
        self._ticket = threading.Lock()  # whoever takes it decides: the thread to run, or a cancel that it never will
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = self._told = self._over = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # so that who awaits it cannot cancel it, only `cancel` can

    def start(self) -> None:
        context = contextvars.copy_context()
        threading.Thread(target=lambda: context.run(self._run), name="raytrain").start()

    def _run(self) -> None:
        if not self._ticket.acquire(blocking=False):
            return
        try:
            result = asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - it is the caller's, who waits for the future
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
        self._over = True
        self._wake.release()

    async def _work(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._running = (asyncio.get_running_loop(), task)
        if self._cancelled:
            self._tell()
        return await self._coroutine

    def cancel(self) -> None:
        self._cancelled = True
        if self._ticket.acquire(blocking=False):
            self._coroutine.close()
            self._over = True
        elif self._running:
            try:
                self._running[0].call_soon_threadsafe(self._tell)
            except RuntimeError:
                pass  # it is over, and its loop closed

    def _tell(self) -> None:
        """Cancel the task, once: a second time would cancel what it does to end well."""
        if self._running and not self._told:
            self._told = True
            self._running[1].cancel()

    def join(self) -> None:
        while not self._over:
            self._wake.acquire(timeout=1)  # in turns: Python may handle a signal only when the thread wakes


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
