"""Says what a person waits for while something is uploaded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from plugin_core.supervisor.events import Event, Listener
from plugin_core.supervisor.progress import duration

T = TypeVar("T")

#: Seconds after which an upload is worth a line.
TOLD_AFTER_S = 2.0


async def tell_if_slow(
    upload: Coroutine[Any, Any, T], what: str, tell: Listener, size: Callable[[], int] | None = None
) -> T:
    """The result of an upload of `what`; if it takes a while, a line says so, and another one says when it is done.
    `size`: returns the bytes sent so far."""
    began, task = time.monotonic(), asyncio.ensure_future(upload)
    try:
        await asyncio.wait([task], timeout=TOLD_AFTER_S)
        slow = not task.done()
        if slow:
            tell(Event("state", f"uploading {what}"))
        result = await task
    finally:
        task.cancel()
    if slow:
        sent = f", {size() / 1e6:.1f} MB," if size is not None else ""
        tell(Event("state", f"uploaded {what}{sent} in {duration(time.monotonic() - began)}"))
    return result
