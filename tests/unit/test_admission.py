"""Steps of one cluster take turns, so that none waits for what another holds. The cluster's head is a fake in memory."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugin_core import BatchInferSpec, EvaluateSpec, RetrainSpec, ScalingConfig, TrainSpec, TuneSpec, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.driver import admission, resources
from plugin_core.driver.admission import Place, wait
from plugin_core.driver.evaluate.predictor import pool
from plugin_core.driver.resources import fitting
from plugin_core.driver.train.step import _scaling_config
from plugin_core.driver.tune.step import _concurrent_trials
from plugin_core.errors import StepTimeoutError
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from tests.support.fake_steps import spec_at

LOOP = "devtools.steps:counting_loop"
CHECKPOINT = "/runs/a/checkpoint_1"
#: two workers, and a CPU for Ray Data
THREE = {"CPU": 3.0}


class FakeHead:
    """The notes of a cluster, and which of its jobs live."""

    def __init__(self, **total: float):
        self.notes: dict[str, bytes] = {}
        self.total: dict[str, float] = total or {"CPU": 4.0}
        self.alive: set[str] = set()
        self.away = False
        self.before_write: Callable[[], None] = lambda: None

    def step(self, run: str, need: dict[str, float], at_most: dict[str, float] | None = None) -> "FakeStep":
        job = f"{len(self.alive) + 1:08x}"
        self.alive.add(job)
        return FakeStep(self, run, job, need, at_most or need)


class FakeBoard:
    """What a process of one job sees of the head."""

    def __init__(self, head: FakeHead, job: str, worker: bool = False):
        self._head, self._job, self._worker = head, job, worker

    def _answer(self) -> None:
        if self._head.away:
            raise OSError("the head is away")

    def read(self) -> dict[str, bytes]:
        self._answer()
        return dict(self._head.notes)

    def write(self, name: str, data: bytes) -> None:
        self._answer()
        self._head.before_write()
        self._head.notes[name] = data

    def remove(self, name: str) -> None:
        self._answer()
        self._head.notes.pop(name, None)

    def job(self) -> str:
        return self._job

    def live_jobs(self) -> set[str]:
        return set(self._head.alive)

    def in_worker(self) -> bool:
        return self._worker

    def total(self) -> dict[str, float]:
        return dict(self._head.total)


class FakeStep:
    """A step that wants to run on the fake head."""

    def __init__(self, head: FakeHead, run: str, job: str, need: dict[str, float], at_most: dict[str, float]):
        self.head, self.job = head, job
        self.place = Place(FakeBoard(head, job), run, need, at_most)

    def begins(self) -> bool:
        return self.place.look().admitted

    def ends(self) -> None:
        self.place.leave()

    def is_killed(self) -> None:
        self.head.alive.remove(self.job)


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

    def test_a_step_that_needs_more_than_there_is_gets_its_turn_so_that_ray_says_what_is_missing(self) -> None:
        head = FakeHead(CPU=2.0)
        small, large, other = head.step("a", {"CPU": 1.0}), head.step("b", {"CPU": 8.0}), head.step("c", {"GPU": 1.0})
        assert small.begins()
        assert not large.begins()
        small.ends()
        assert large.begins()
        assert other.begins(), "nobody holds what this cluster does not have"

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


class TestRoom:
    def test_alone_a_range_may_grow_and_beside_others_it_keeps_to_what_is_left(self) -> None:
        head = FakeHead(CPU=4.0)
        first = head.step("a", {"CPU": 1.0}, {"CPU": 2.0})
        turn = first.place.look()
        assert (turn.admitted, turn.room) == (True, None)
        turn = head.step("b", {"CPU": 1.0}, {"CPU": 8.0}).place.look()
        assert (turn.admitted, turn.room) == (True, {"CPU": 2.0})
        assert not head.step("c", {"CPU": 1.0}).begins(), "the second may take all that the first one left"

    def test_what_a_range_may_grow_to_is_held_also_where_nodes_come_later(self) -> None:
        head = FakeHead(CPU=2.0)
        assert head.step("a", {"CPU": 1.0}, {"CPU": 4.0}).begins()
        head.total = {"CPU": 4.0}
        assert not head.step("b", {"CPU": 1.0}).begins()

    def test_workers_and_actors_keep_to_the_room(self) -> None:
        spec = TrainSpec(
            train_loop_per_worker=LOOP, datasets={"train": "/x.csv"}, scaling_config=ScalingConfig(num_workers=(1, 8))
        )
        assert _scaling_config(spec, None).num_workers == (1, 8)
        assert _scaling_config(spec, {"CPU": 4.0}).num_workers == (1, 3), "one is for Ray Data"
        fixed = spec.model_copy(update={"scaling_config": ScalingConfig(num_workers=3)})
        assert _scaling_config(fixed, {"CPU": 1.0}).num_workers == 3
        infer = BatchInferSpec(predictor=LOOP, checkpoint=CHECKPOINT, dataset="/x.csv", concurrency=(1, 8))
        with pool(infer, {"CPU": 4.0}) as options:
            assert (options["compute"].min_size, options["compute"].max_size) == (1, 3)
        with pool(infer, None) as options:
            assert options["compute"].max_size == 8

    def test_as_many_fit_as_each_of_their_resources_allows(self) -> None:
        assert fitting({"CPU": 9.0, "GPU": 2.0}, {"CPU": 1.0, "GPU": 1.0}, 1, 8, {"CPU": 1.0}) == 2
        assert fitting({"CPU": 0.3}, {"CPU": 0.1, "GPU": 0.0}, 1, 8, {}) == 3
        assert fitting({}, {"CPU": 1.0}, 2, 8, {}) == 2, "never fewer than the step needs"


SPACE = {"train_loop_config": {"lr": {"uniform": [0.1, 0.2]}}}
TRAIN = {
    "train_loop_per_worker": LOOP,
    "datasets": {"train": "/x.csv"},
    "scaling_config": {"num_workers": (2, 3), "resources_per_worker": {"CPU": 2.0, "GPU": 1.0}},
}
EVALUATE = {
    "predictor": LOOP,
    "task": "classification",
    "dataset": "/x.csv",
    "concurrency": (4, 6),
    "must_beat": ["f1"],
}


class TestNeed:
    def test_a_training_needs_its_fewest_workers_and_a_cpu_for_its_data(self) -> None:
        spec = TrainSpec(**TRAIN)
        assert (spec.need(), spec.at_most()) == ({"CPU": 5.0, "GPU": 2.0}, {"CPU": 7.0, "GPU": 3.0})
        bare = spec.model_copy(update={"datasets": {}})
        assert (bare.need(), bare.at_most()) == ({"CPU": 4.0, "GPU": 2.0}, {"CPU": 6.0, "GPU": 3.0})

    def test_a_pool_needs_its_fewest_actors_and_a_cpu_for_its_data(self) -> None:
        for spec in (
            EvaluateSpec(**{**EVALUATE, "must_beat": {}}, checkpoint=CHECKPOINT),
            BatchInferSpec(predictor=LOOP, checkpoint=CHECKPOINT, dataset="/x.csv", concurrency=(4, 6)),
        ):
            assert (spec.need()["CPU"], spec.at_most()["CPU"]) == (5.0, 7.0)

    def test_an_evaluation_by_a_function_needs_its_process(self) -> None:
        spec = EvaluateSpec(evaluate=LOOP, checkpoint=CHECKPOINT, num_cpus=2.0)
        assert spec.need() == spec.at_most() == {"CPU": 2.0, "GPU": 0.0}

    def test_a_search_needs_all_trials_that_run_at_once(self) -> None:
        search = {"train": TRAIN, "param_space": SPACE, "metric": "f1", "mode": "max", "num_samples": 5}
        assert TuneSpec(**search, max_concurrent_trials=2).need() == {"CPU": 14.0, "GPU": 6.0}
        assert TuneSpec(**search, max_concurrent_trials=9).need() == {"CPU": 35.0, "GPU": 15.0}
        assert TuneSpec(**search).at_most() == {"CPU": 35.0, "GPU": 15.0}

    def test_a_search_over_the_number_of_workers_needs_room_for_the_most(self) -> None:
        space = {"scaling_config": {"num_workers": {"choice": [1, 6]}}}
        spec = TuneSpec(train=TRAIN, param_space=space, metric="f1", mode="max", max_concurrent_trials=1)
        assert spec.need()["CPU"] == 13.0

    def test_a_retraining_needs_what_the_larger_of_its_parts_needs(self) -> None:
        evaluate = {**EVALUATE, "num_cpus": 3.0}
        spec = RetrainSpec(model="m", train=TRAIN, evaluate=evaluate)
        assert (spec.need(), spec.at_most()) == ({"CPU": 13.0, "GPU": 2.0}, {"CPU": 19.0, "GPU": 3.0})


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
            "the step got no resources within limits.scheduling_timeout_s (0.05 s): it needs 2 CPU; free: 1 of 4 CPU;"
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


class TestOnAClusterThatGrows:
    def test_its_jobs_are_told_so(self, tmp_path: Path) -> None:
        for growing in (True, False):
            with FakeCluster(autoscaling=growing) as cluster:
                run(spec_at(tmp_path / str(growing)), cluster)
                (environment,) = cluster.runtime_envs
            assert (environment["env_vars"].get(admission.AUTOSCALING) == "1") is growing

    @pytest.mark.parametrize(("wanted", "here", "growing"), [(None, 2, 2), (1, 1, 1), (5, 2, 5)])
    def test_only_there_a_search_starts_more_trials_than_fit(
        self, monkeypatch: pytest.MonkeyPatch, wanted: int | None, here: int, growing: int
    ) -> None:
        monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 11.0, "GPU": 4.0})
        spec = TuneSpec(train=TRAIN, param_space=SPACE, metric="f1", mode="max", max_concurrent_trials=wanted)
        assert _concurrent_trials(spec) == here
        monkeypatch.setenv(admission.AUTOSCALING, "1")
        assert _concurrent_trials(spec) == growing


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
        assert len(head.notes) == 1, "it could not be given back, which is no error of the step"
        head.away = False
        monkeypatch.setenv(admission.AUTOSCALING, "1")
        with admission.admitted(context):
            assert len(head.notes) == 1, "nobody takes tickets where nodes come as they are needed"


def test_the_error_of_ray_itself_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 1.0})
    assert resources.no_resources(6.0, "2 CPU").message.endswith("it needs 2 CPU; free: 1 of 4 CPU")
