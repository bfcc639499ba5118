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

#: Calls at once to one storage. They wait rather than compute: with asyncio's own few threads a hundred runs on a storage
#: of 50 ms a call are read too slowly (benchmarks/triggerer.py).
THREADS = 64
#: Calls at once where one caller has many to make.
PARALLEL = 32
#: A call that takes longer, in seconds, is abandoned: its storage hangs. Far above what a client's own retries take.
HUNG_S = 60.0


class Threads:
    """Threads for the blocking calls to one storage. Every storage has its own: one that hangs (an NFS server that went
    away) holds up the runs that it keeps, and no others. Use `Threads.of`, and keep what it returns as long as needed."""

    _all: ClassVar[weakref.WeakValueDictionary[str, Threads]] = weakref.WeakValueDictionary()

    def __init__(self, storage: str):
        self.storage = storage
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, uri: str) -> Threads:
        """The threads for the storage that keeps this run: its bucket, or the folder of a local path. The path alone
        decides, since to look it up is what may hang."""
        parts = urlsplit(uri)
        storage = f"{parts.scheme}://{parts.netloc}" if "://" in uri else posixpath.dirname(uri)
        threads = cls._all.get(storage)
        if threads is None:
            threads = cls._all[storage] = cls(storage)
        return threads

    async def __call__(self, function: Callable[..., T], *arguments: Any, limit_s: float | None = None) -> T:
        """The result of a blocking call. Raises StorageError after `limit_s` seconds (default: `HUNG_S`; inf: never); the
        call itself cannot be stopped, and ends in its thread whenever it ends."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="raytrain-storage")
        context = contextvars.copy_context()
        limit_s = HUNG_S if limit_s is None else limit_s
        calling = asyncio.get_running_loop().run_in_executor(self._pool, lambda: context.run(function, *arguments))
        try:
            await asyncio.wait([calling], timeout=None if limit_s == math.inf else limit_s)
            if not calling.done():
                raise StorageError(f"{self.storage} hangs: a call got no answer for {limit_s:.0f} s")
            return calling.result()
        finally:
            calling.cancel()  # of use where it still waits for a thread

    @classmethod
    def forget_pools(cls) -> None:
        """Begin new ones, in a child that was forked."""
        for threads in cls._all.values():
            threads._pool = None


_others = Threads._all[""] = Threads("")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a blocking call that is not to one run's storage."""
    return await _others(function, *arguments, limit_s=math.inf)


def parallel(function: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """The results of blocking calls, one for each item, many at once. Raises what the first of them raises."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(PARALLEL, len(items)), thread_name_prefix="raytrain-parallel") as pool:
        return list(pool.map(function, items))


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


class _Background:
    """An event loop in a thread of its own, which lives as long as the process."""

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
    """Begin a coroutine that nobody waits for, and which handles its own errors. All of a process share one thread."""
    _background.begin(coroutine)


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
        # not by `threading.Thread`, whose `start` waits for the thread under a lock that an interrupt may break
        _thread.start_new_thread(contextvars.copy_context().run, (self._run,))

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


def _forget_threads() -> None:
    """In a forked child, which has none of its parent's threads."""
    global _background
    _background = _Background()
    Threads.forget_pools()


# Airflow and Prefect fork
os.register_at_fork(after_in_child=_forget_threads)
