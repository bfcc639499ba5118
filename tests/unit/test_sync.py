"""Coroutines from synchronous code: what interrupts the caller reaches the coroutine, and nobody else."""

import asyncio
import contextvars
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from plugin_core.storage.threads import in_own_loop, run_sync


class Interrupt(BaseException):
    """As an engine raises it in a signal handler."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_of_the_main_thread_reaches_the_caller_whatever_the_loop_is_doing() -> None:
    """In a loop of the main thread it would only end the task that is busy."""
    cancelled = []

    async def busy() -> None:
        for _ in range(10**9):
            await asyncio.sleep(0)

    async def work() -> None:
        companion = asyncio.create_task(busy())
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(not companion.done())
            companion.cancel()
            raise

    with pytest.raises(Interrupt):
        run_sync(work())
    assert cancelled == [True]


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_while_the_coroutine_starts_cancels_it_once_and_waits_for_it() -> None:
    def interrupted_at_once() -> list[str]:
        seen = []

        async def work() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                seen.append("ended well")
                raise

        with pytest.raises(Interrupt):
            run_sync(work())
        return seen

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that the main thread is met in the middle of starting the other
    gc.disable()  # what a signal raises while the collector calls a finalizer, Python drops
    try:
        assert [interrupted_at_once() for _ in range(300)] == [["ended well"]] * 300
    finally:
        gc.enable()
        sys.setswitchinterval(before)


def test_it_runs_inside_a_running_loop_too_with_the_callers_context() -> None:
    variable = contextvars.ContextVar("variable", default="")

    async def work() -> tuple[str, str]:
        return variable.get(), threading.current_thread().name

    async def outer() -> tuple[str, str]:
        variable.set("set by the caller")
        return run_sync(work())

    value, thread = asyncio.run(outer())
    assert value == "set by the caller"
    assert thread != threading.current_thread().name


def test_a_cancelled_caller_cancels_the_coroutine_in_its_own_loop_and_waits_for_it() -> None:
    seen = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("over")

    async def outer() -> None:
        task = asyncio.create_task(in_own_loop(work()))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        seen.append("caller")

    asyncio.run(outer())
    assert seen == ["over", "caller"]


def test_an_error_of_the_coroutine_is_raised_in_the_caller() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        run_sync(work())
