"""Coroutines from synchronous code, and blocking calls from coroutines."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import math
import os
import posixpath
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from plugin_core.errors import StorageError

S = TypeVar("S")
T = TypeVar("T")

#: Concurrent calls to one storage. They are I/O-bound: asyncio's few default threads are too slow for a hundred runs on a
#: storage with 50 ms latency (benchmarks/triggerer.py).
THREADS = 64
#: Concurrent calls on behalf of one caller.
PARALLEL = 32
#: Seconds after which a call is abandoned because its storage hangs. Far longer than a client's own retries take.
HUNG_S = 60.0


class Threads:
    """A thread pool for blocking calls to one storage. Each storage has its own, so one that hangs (a lost NFS server)
    blocks only its own runs. Use `Threads.of`, and hold the result as long as needed."""

    _all: ClassVar[weakref.WeakValueDictionary[str, Threads]] = weakref.WeakValueDictionary()

    def __init__(self, storage: str):
        self.storage = storage
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, uri: str) -> Threads:
        """The threads for a run's storage: its bucket, or the parent folder of a local path. Decided by the path alone,
        since a lookup may hang."""
        parts = urlsplit(uri)
        storage = f"{parts.scheme}://{parts.netloc}" if "://" in uri else posixpath.dirname(uri)
        threads = cls._all.get(storage)
        if threads is None:
            threads = cls._all[storage] = cls(storage)
        return threads

    async def __call__(self, function: Callable[..., T], *arguments: Any, limit_s: float | None = None) -> T:
        """The result of a blocking call. Raises StorageError after `limit_s` seconds (default: `HUNG_S`; inf: never). The
        call itself cannot be stopped and continues in its thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="raytrain-storage")
        context = contextvars.copy_context()
        limit_s = HUNG_S if limit_s is None else limit_s
        calling = asyncio.get_running_loop().run_in_executor(self._pool, lambda: context.run(function, *arguments))
        try:
            await asyncio.wait([calling], timeout=None if limit_s == math.inf else limit_s)
            if not calling.done():
                raise StorageError(f"{self.storage} hangs: a call did not return within {limit_s:.0f} s")
            return calling.result()
        finally:
            calling.cancel()  # effective only if it is still waiting for a thread

    @classmethod
    def forget_pools(cls) -> None:
        """Discard all pools, in a forked child."""
        for threads in cls._all.values():
            threads._pool = None


_others = Threads._all[""] = Threads("")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a blocking call that does not use a run's storage."""
    return await _others(function, *arguments, limit_s=math.inf)


def parallel(function: Callable[[S], T], items: Sequence[S], at_once: int = PARALLEL) -> list[T]:
    """The results of concurrent blocking calls, one per item. Raises the first error."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(at_once, len(items)), thread_name_prefix="raytrain-parallel") as pool:
        return list(pool.map(function, items))


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, even if this thread already runs an event loop.

    If called from the main thread, the coroutine runs in another one: an exception from a signal handler (an engine's
    timeout or termination) then interrupts the wait, and the coroutine is cancelled. In a main-thread loop the exception
    would surface in whichever callback was running, and asyncio would swallow it.
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
    """Await a coroutine in its own loop and thread, unaffected by signals and blocking code."""
    inner = _Elsewhere(coroutine)
    try:
        inner.start()
        result: T = await asyncio.wrap_future(inner.future)
        return result
    except asyncio.CancelledError:
        inner.cancel()
        await asyncio.to_thread(inner.join)
        raise


class _Background:
    """An event loop in its own thread, for the lifetime of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending: set[Future[Any]] = set()

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True, name="raytrain-background").start()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)


_background = _Background()


def in_background(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Start a coroutine that nobody awaits and that handles its own errors. All those of a process share one thread."""
    _background.begin(coroutine)


class _Elsewhere:
    """A coroutine in its own thread, with a copy of the current context.

    A signal handler's exception may interrupt the main thread anywhere in `start`, `join` and `cancel`. So these hold no
    lock that the thread needs (an interrupted `with` may leave a condition of `concurrent.futures` locked).
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any]):
        self._coroutine = coroutine
        self._ticket = threading.Lock()  # taken by the thread to run the coroutine, or by a cancel to prevent that
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._cancelled = self._told = self._over = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # so that only `cancel` can cancel it, not its awaiter

    def start(self) -> None:
        # not `threading.Thread`: its `start` waits under a lock that an interrupt may leave held
        _thread.start_new_thread(contextvars.copy_context().run, (self._run,))

    def _run(self) -> None:
        if not self._ticket.acquire(blocking=False):
            return
        try:
            result = asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - passed to the caller through the future
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
                pass  # already finished, with its loop closed

    def _tell(self) -> None:
        """Cancel the task once: a second cancel would interrupt its cleanup."""
        if self._running and not self._told:
            self._told = True
            self._running[1].cancel()

    def join(self) -> None:
        while not self._over:
            self._wake.acquire(timeout=1)  # with a timeout: Python may handle a signal only when the thread wakes


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _forget_threads() -> None:
    """Reset in a forked child, which does not inherit its parent's threads."""
    global _background
    _background = _Background()
    Threads.forget_pools()


# Airflow and Prefect fork
os.register_at_fork(after_in_child=_forget_threads)
