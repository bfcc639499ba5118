"""What each kind of step needs of a cluster, and how it keeps to the room that others leave."""

from pathlib import Path

import pytest

from plugin_core import BatchInferSpec, EvaluateSpec, RetrainSpec, ScalingConfig, TrainSpec, TuneSpec, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.driver.admission import AUTOSCALING
from plugin_core.driver.evaluate.predictor import pool
from plugin_core.driver.resources import fitting, no_resources
from plugin_core.driver.train.step import _scaling_config
from plugin_core.driver.tune.step import _concurrent_trials
from plugin_core.specs.resources import in_words
from tests.support.fake_head import FakeHead
from tests.support.fake_steps import spec_at

LOOP = "devtools.steps:counting_loop"
CHECKPOINT = "/runs/a/checkpoint_1"
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


class TestOnAClusterThatGrows:
    def test_its_jobs_are_told_so(self, tmp_path: Path) -> None:
        for growing in (True, False):
            with FakeCluster(autoscaling=growing) as cluster:
                run(spec_at(tmp_path / str(growing)), cluster)
                (environment,) = cluster.runtime_envs
            assert (environment["env_vars"].get(AUTOSCALING) == "1") is growing

    @pytest.mark.parametrize(("wanted", "here", "growing"), [(None, 2, 2), (1, 1, 1), (5, 2, 5)])
    def test_only_there_a_search_starts_more_trials_than_fit(
        self, monkeypatch: pytest.MonkeyPatch, wanted: int | None, here: int, growing: int
    ) -> None:
        monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 11.0, "GPU": 4.0})
        spec = TuneSpec(train=TRAIN, param_space=SPACE, metric="f1", mode="max", max_concurrent_trials=wanted)
        assert _concurrent_trials(spec) == here
        monkeypatch.setenv(AUTOSCALING, "1")
        assert _concurrent_trials(spec) == growing


@pytest.mark.parametrize(
    ("resources", "words"),
    [({"CPU": 1.0, "GPU": 2.0}, "1 CPU, 2 GPUs"), ({"CPU": 0.5, "GPU": 0.0}, "0.5 CPUs, 0 GPUs"), ({"TPU": 4.0}, "4 TPU")],
)
def test_resources_in_words(resources: dict[str, float], words: str) -> None:
    assert in_words(resources) == words


def test_the_error_of_ray_itself_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 1.0})
    assert no_resources(6.0, "2 CPUs").message.endswith("it needs 2 CPUs; free: 1 of 4 CPUs")
