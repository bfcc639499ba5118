"""How a worker hears from a controller that is not an actor, and when it answers its polls."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train import CheckpointConsistencyMode

from plugin_core.ray_internals import polled_worker
from plugin_core.ray_internals.polled_worker import ASK_S, Controller, ask_s, wait_until_registered


@pytest.fixture
def controller() -> Controller:
    return Controller(threading.Condition())


def started(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A thread that does it, and what comes of it."""
    came: list[Any] = []

    def do() -> None:
        try:
            came.append(work())
        except ValueError as exc:
            came.append(exc)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    return thread, came


def until_it_asks(controller: Controller) -> None:
    with controller._news:
        assert controller._news.wait_for(lambda: controller.is_asking, 60)


def test_a_report_is_waited_for_until_a_poll_says_that_it_is_registered(controller: Controller) -> None:
    controller.hear(2, {})
    controller.wait_for(2)
    thread, came = started(lambda: wait_until_registered(SimpleNamespace(controller_actor=controller, report_call_index=3)))
    until_it_asks(controller)
    controller.hear(2, {})
    thread.join(0.2)
    assert thread.is_alive(), "the third report is not registered yet"
    controller.hear(3, {})
    thread.join(60)
    assert came == [None]


@pytest.mark.parametrize("answer", [["a checkpoint"], ValueError("refused")])
def test_a_question_goes_with_a_poll_once_and_its_answer_comes_with_another(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(polled_worker.ray, "put", lambda value: value)
    asked = (4, CheckpointConsistencyMode.VALIDATED, None)
    thread, came = started(lambda: controller.get_all_reported_checkpoints.remote(*asked))
    until_it_asks(controller)
    ((number, question),) = controller.questions().items()
    assert question == asked
    assert controller.questions() == {}
    controller.hear(4, {number: answer})
    thread.join(60)
    assert came == [answer]


def test_news_ends_a_poll_unless_a_report_that_does_follows(controller: Controller) -> None:
    controller.tell("kept", at_once=False)
    assert not controller.is_asking
    controller.tell("stored", at_once=True)
    assert controller.is_asking
    assert controller.take_news() == ["kept", "stored"]
    assert controller.take_news() == []


def test_a_poll_is_short_while_somebody_waits_for_the_controller(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(polled_worker.time, "monotonic", lambda: now[0])
    assert controller.patience_s(ASK_S) == ASK_S
    thread, _ = started(lambda: controller.wait_for(1))
    until_it_asks(controller)
    assert controller.patience_s(ASK_S) < ASK_S / 10
    now[0] += 3600.0
    assert controller.patience_s(ASK_S) == ASK_S, "one that has waited for long need not be told within milliseconds"
    controller.hear(1, {})
    thread.join(60)
    assert controller.patience_s(ASK_S) == ASK_S


def test_one_controller_reads_the_answers_of_all_workers() -> None:
    assert ask_s(2) == ASK_S
    assert ask_s(1000) > 5 * ASK_S
