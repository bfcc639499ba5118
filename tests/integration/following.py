"""Following a run while the test does something to it."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from plugin_core.supervisor import Supervisor, run_sync


@contextmanager
def in_background(supervisor: Supervisor) -> Iterator[Future[Any]]:
    """The run is followed in a thread; `result(seconds)` of what this yields is the run's."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(lambda: run_sync(supervisor.run()))
        try:
            yield following
        except BaseException:
            supervisor.give_up()
            raise


def wait_until(true: Callable[[], Any], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)
