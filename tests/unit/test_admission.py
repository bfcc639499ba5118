"""Steps of one cluster take turns, so that none waits for what another holds. The cluster's head is a fake in memory."""

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugin_core import ScalingConfig, TrainSpec
from plugin_core.driver import admission
from plugin_core.driver.admission import Place, wait
from plugin_core.errors import StepTimeoutError
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from tests.support.fake_head import FakeBoard, FakeHead, FakeStep

LOOP = "devtools.steps:counting_loop"
#: two workers, and a CPU for Ray Data
THREE = {"CPU": 3.0}


class FakeContext(SimpleNamespace):
    """What `wait` needs of a step's context."""

    def __init__(self, limit: float | None = None, **fields: Any):
        self.phases: list[str] = []
        spec = TrainSpec(
            train_loop_per_worker=LOOP,
            scaling_config=ScalingConfig(num_workers=2),
            limits=Limits(scheduling_timeout_s=limit),
        )
        super().__init__(spec=spec, room=None, set_phase=self.phases.append, **fields)


class TestOrder:
    def test_what_fits_together_runs_together_and_the_rest_waits_for_its_turn(self) -> None:
        head = FakeHead(CPU=6.0)
        first, second, third = (head.step(name, THREE) for name in ("a", "b", "c"))
        assert [step.begins() for step in (first, second, third)] == [True, True, False]
        first.ends()
        assert third.begins()

    def test_a_wide_step_is_not_starved_by_narrow_ones_that_come_later(self) -> None:
        head = FakeHead()
        running, wide, narrow = head.step("a", {"CPU": 2.0}), head.step("b", {"CPU": 4.0}), head.step("c", {"CPU": 1.0})
        assert running.begins()
        assert not wide.begins()
        assert not narrow.begins(), "it would fit, but then another, and another"
        running.ends()
        assert not narrow.begins()
        assert wide.begins()
        assert not narrow.begins()
        wide.ends()
        assert narrow.begins()

    def test_a_step_says_what_it_waits_for_and_who_is_ahead(self) -> None:
        head = FakeHead(CPU=4.0, GPU=1.0)
        head.step("first", THREE).begins()
        head.step("second", {"CPU": 2.0, "GPU": 1.0}).begins()
        turn = head.step("third", {"CPU": 1.0, "GPU": 0.0}).place.look()
        assert (turn.waits_for, turn.ahead) == (
            "1 CPU; 2 runs ahead",
            "first (has 3 CPUs), second (waits for 2 CPUs, 1 GPU)",
        )

    def test_a_step_that_needs_more_than_there_is_begins_alone_so_that_ray_says_what_is_missing(self) -> None:
        head = FakeHead(CPU=2.0)
        small, large, other = head.step("a", {"CPU": 1.0}), head.step("b", {"CPU": 8.0}), head.step("c", {"GPU": 1.0})
        assert small.begins()
        assert large.place.look().waits_for == "2 CPUs; 1 run ahead", "all that there are"
        small.ends()
        assert large.begins()
        assert other.place.look().waits_for == "1 GPU; 1 run ahead"
        large.ends()
        assert other.begins()

    def test_a_lost_node_lets_nobody_in(self) -> None:
        head = FakeHead(CPU=4.0)
        assert head.step("a", THREE).begins()
        head.total = {}
        assert not head.step("b", THREE).begins()

    def test_fractions_add_up(self) -> None:
        head = FakeHead(CPU=0.3)
        assert all(head.step("a", {"CPU": 0.1}).begins() for _ in range(3))

    def test_many_at_once_never_hold_more_than_there_is_and_all_get_their_turn(self) -> None:
        head, lock, holding, most = FakeHead(CPU=4.0), threading.Lock(), [0.0], [0.0]
        head.before_write = lambda: time.sleep(0.0005)
        errors: list[BaseException] = []

        def run(step: FakeStep, cpus: float) -> None:
            try:
                while not step.begins():
                    time.sleep(0.001)
                with lock:
                    holding[0] += cpus
                    most[0] = max(most[0], holding[0])
                time.sleep(0.002)
                with lock:
                    holding[0] -= cpus
                step.ends()
            except BaseException as exc:
                errors.append(exc)

        steps = [(head.step(f"run {number}", {"CPU": cpus}), cpus) for number, cpus in enumerate([1.0, 3.0, 2.0, 4.0] * 5)]
        threads = [threading.Thread(target=run, args=each) for each in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert head.notes == {}
        assert 0 < most[0] <= 4.0

    def test_of_two_that_draw_at_the_same_time_only_one_begins(self) -> None:
        """The first has looked at the board and is about to write its ticket. Meanwhile the second draws the same number,
        sees nobody before it, and is about to note that it is admitted. The first must not begin before it either."""
        head = FakeHead()
        first, second = head.step("a", THREE), head.step("b", THREE)
        looked, go, begun = threading.Event(), threading.Event(), []
        thread = threading.Thread(target=lambda: begun.append(second.begins()))
        writes = 0

        def before_write() -> None:
            nonlocal writes
            if threading.current_thread() is not thread:
                if not thread.ident:
                    thread.start()
                    assert looked.wait(30)
                return
            writes += 1
            if writes == 2:
                looked.set()
                assert go.wait(30)

        head.before_write = before_write
        begun.append(first.begins())
        go.set()
        thread.join(30)
        assert begun == [False, True]
        second.ends()
        assert first.begins()


class TestEnds:
    def test_a_killed_holder_is_dropped_by_the_next_look(self) -> None:
        head = FakeHead()
        killed, waiting = head.step("a", THREE), head.step("b", THREE)
        assert killed.begins()
        assert not waiting.begins()
        killed.is_killed()
        assert waiting.begins()
        assert len(head.notes) == 1

    def test_one_that_is_killed_while_it_waits_holds_nobody_up(self) -> None:
        head = FakeHead()
        running, killed, last = head.step("a", THREE), head.step("b", {"CPU": 4.0}), head.step("c", {"CPU": 1.0})
        assert [step.begins() for step in (running, killed, last)] == [True, False, False]
        killed.is_killed()
        assert last.begins()

    def test_a_head_that_is_away_for_a_look_changes_nothing(self) -> None:
        head = FakeHead()
        running, waiting = head.step("a", THREE), head.step("b", THREE)
        assert running.begins()
        for step in (waiting, head.step("c", THREE)):
            head.away = True
            with pytest.raises(OSError, match="away"):
                step.begins()
            head.away = False
            assert not step.begins()
        assert len(head.notes) == 3
        running.ends()
        assert waiting.begins()

    def test_a_look_that_was_cut_short_leaves_no_second_ticket(self) -> None:
        head = FakeHead()
        step = head.step("a", THREE)

        def vanish() -> None:
            head.away, head.before_write = True, lambda: None

        head.before_write = vanish  # the ticket arrives, but nothing after it
        with pytest.raises(OSError, match="away"):
            step.begins()
        head.away = False
        assert step.begins()
        assert len(head.notes) == 1


class TestNotesOfOthers:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xff",
            b"[]",
            b'{"run": 3, "need": {}, "held": null}',
            b'{"run": "x", "need": {"CPU": "all"}, "held": null}',
            b'{"run": "x", "need": {"CPU": -1.0}, "held": null}',
            b'{"run": "x", "need": {}, "held": {"CPU": NaN}}',
            b"[" * 100_000,
        ],
    )
    def test_a_damaged_ticket_is_not_counted_and_said_once(self, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
        head = FakeHead()
        other, mine = head.step("a", THREE), head.step("b", THREE)
        head.notes[f"000001-{other.job}-00000000"] = data
        blocking = head.step("c", {"CPU": 4.0})
        assert blocking.begins()
        for _ in range(3):
            assert not mine.begins()
        said = [record.getMessage() for record in caplog.records]
        assert len([text for text in said if f"the ticket 000001-{other.job}-00000000 is damaged" in text]) == 2, (
            "by each step"
        )

    def test_notes_that_are_no_tickets_are_left_alone(self) -> None:
        head = FakeHead()
        head.notes = {"": b"", "hello": b"{}", f"{'9' * 5000}-00000001-00000000": b"{}"}
        assert head.step("a", THREE).begins()
        assert len(head.notes) == 4

    def test_the_names_of_others_are_plain_text_and_cut(self) -> None:
        head = FakeHead()
        for number in range(7):
            head.step(f"\x1b[31mrun {number}\n\n2026 ERROR" + "x" * 5000, {"CPU": 4.0}).begins()
        turn = head.step("mine", THREE).place.look()
        assert turn.waits_for == "3 CPUs; 7 runs ahead"
        assert turn.ahead.startswith("run 0 2026 ERRORxxx")
        assert turn.ahead.endswith("(waits for 4 CPUs) and 2 more")
        assert len(turn.ahead) < 500
        assert "\x1b" not in turn.ahead
        assert "\n" not in turn.ahead


class TestWaiting:
    @pytest.fixture(autouse=True)
    def fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(admission, "LOOK_S", 0.01)

    def test_the_phase_says_what_it_waits_for_until_it_begins(self) -> None:
        head, context = FakeHead(), FakeContext()
        holder, step = head.step("a", THREE), head.step("b", THREE)
        assert holder.begins()

        def set_phase(phase: str) -> None:
            context.phases.append(phase)
            holder.ends()

        context.set_phase = set_phase
        wait(step.place, context, (OSError,))
        assert context.phases == ["waiting for 3 CPUs; 1 run ahead", "starting"]

    def test_one_whose_turn_it_is_never_says_that_it_waits(self) -> None:
        context = FakeContext()
        assert wait(FakeHead().step("a", THREE).place, context, (OSError,)) is None
        assert context.phases == []

    def test_waiting_ends_with_the_scheduling_timeout_in_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_ray = {"cluster_resources": lambda: {"CPU": 4.0}, "available_resources": lambda: {"CPU": 1.0}}
        for name, function in fake_ray.items():
            monkeypatch.setattr(f"ray.{name}", function)
        head = FakeHead()
        head.step("nightly", THREE).begins()
        step = head.step("mine", {"CPU": 2.0})
        with pytest.raises(StepTimeoutError) as caught:
            wait(step.place, FakeContext(limit=0.05), (OSError,))
        assert caught.value.message == (
            "the step got no resources within limits.scheduling_timeout_s (0.05 s): it needs 2 CPUs; free: 1 of 4 CPUs;"
            " ahead: nightly (has 3 CPUs)"
        )

    def test_a_head_that_does_not_answer_is_asked_again_until_the_scheduling_timeout(self) -> None:
        head, context = FakeHead(), FakeContext()
        step = head.step("a", THREE)
        head.away = True

        def set_phase(phase: str) -> None:
            context.phases.append(phase)
            head.away = False

        context.set_phase = set_phase
        wait(step.place, context, (OSError,))
        assert context.phases == ["waiting for an answer of the cluster's head (the head is away)", "starting"]
        other = head.step("b", THREE)
        head.away = True
        with pytest.raises(StepTimeoutError, match="waits for an answer of the cluster's head"):
            wait(other.place, FakeContext(limit=0.05), (OSError,))

    def test_what_a_process_of_an_admitted_step_starts_is_part_of_it(self) -> None:
        head = FakeHead()
        outer = head.step("a", {"CPU": 4.0})
        assert outer.begins()
        inner = Place(FakeBoard(head, outer.job, worker=True), "b", THREE, THREE)
        wait(inner, FakeContext(), (OSError,))
        assert len(head.notes) == 1
        beside = Place(FakeBoard(head, outer.job), "c", THREE, THREE)
        assert not beside.look().admitted, "another thread of the driver is not inside"

    def test_steps_one_after_the_other_in_one_process_take_one_ticket_each(self) -> None:
        head = FakeHead()
        board = FakeBoard(head, "0000000a")
        head.alive.add("0000000a")
        for name in ("train", "evaluate"):
            place = Place(board, name, THREE, THREE)
            assert place.look().admitted
            assert [json.loads(note)["run"] for note in head.notes.values()] == [name]
            place.leave()
        assert head.notes == {}


class TestOfAnAttempt:
    def test_the_ticket_is_held_while_the_step_runs_and_given_back_however_it_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        head = FakeHead()
        head.alive.add("00000001")
        board = FakeBoard(head, "00000001")
        for name in ("read", "write", "remove", "job", "live_jobs", "in_worker", "total"):
            monkeypatch.setattr(f"plugin_core.ray_internals.board.{name}", getattr(board, name))
        monkeypatch.setattr("ray.is_initialized", lambda: True)
        spec = TrainSpec(train_loop_per_worker=LOOP)
        context = StepContext(spec, RunDir.at(str(tmp_path / "run")), 1, {}, lambda phase: None)
        with admission.admitted(context) as admitted:
            assert admitted.room is None
            assert len(head.notes) == 1
        assert head.notes == {}
        with pytest.raises(ValueError, match="of the step"), admission.admitted(context):
            raise ValueError("of the step")
        assert head.notes == {}
        with admission.admitted(context):
            head.away = True
        assert len(head.notes) == 1, "it could not be given back, which is not an error of the step"
        head.away = False
        monkeypatch.setenv(admission.AUTOSCALING, "1")
        with admission.admitted(context):
            assert len(head.notes) == 1, "nobody takes tickets where nodes come as they are needed"
