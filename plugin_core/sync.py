"""Coroutines from synchronous code."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


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
