"""What a worker passes to Ray in a report, and what it gets to resume from."""

import itertools
import json
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray.train
import torch
from ray import tune
from ray.train import Checkpoint, ReportedCheckpoint, ReportedCheckpointStatus, ScalingConfig
from ray.train._internal import session
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution import train_fn_utils
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.execution.tune_controller import TuneController

from plugin_core.driver.fenced_filesystem import fenced_filesystem
from plugin_core.driver.train import worker as worker_module
from plugin_core.driver.train.frameworks import trees
from plugin_core.driver.train.own_checkpoint import OwnCheckpoint
from plugin_core.driver.train.worker import WorkerOptions, _safe_metrics, wrap
from plugin_core.errors import SpecError
from plugin_core.loops import upload as uploads
from plugin_core.loops.preprocessors import KEY as PREPROCESSOR
from plugin_core.loops.rows import stored
from plugin_core.loops.torch import restore
from plugin_core.ray_internals import worker
from plugin_core.runs.directory import RunDir
from plugin_core.storage import checkpoint_manifest


@pytest.mark.parametrize(
    ("metrics", "score", "expected"),
    [
        ({"loss": float("nan"), "a": np.float32(0.5)}, None, {"loss": None, "a": 0.5}),
        ({"loss": float("nan"), "a": 1}, "loss", {"a": 1}),
        ({"loss": 0.5, "a": float("inf")}, "loss", {"loss": 0.5, "a": None}),
        ({"eval": {"loss": float("nan"), "b": 1}}, "eval/loss", {"eval": {"b": 1}}),
    ],
)
def test_metrics_are_json_safe_and_a_score_that_is_not_a_number_is_left_out(
    metrics: dict[str, Any], score: str | None, expected: dict[str, Any]
) -> None:
    """Ray multiplies a checkpoint's score, which fails for null; without a score the checkpoint ranks last."""
    assert _safe_metrics(metrics, score) == expected


@pytest.mark.parametrize("slow", [True, False])
def test_an_upload_of_a_checkpoint_that_takes_a_while_is_told_in_the_jobs_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], slow: bool
) -> None:
    uploading = threading.Event()
    if slow:
        monkeypatch.setattr(worker_module, "SLOW_UPLOAD_S", 0.0)
        monkeypatch.setattr(worker_module, "print", lambda *words, **_: (print(*words), uploading.set()), raising=False)

    def upload(checkpoint: Checkpoint, name: str) -> Checkpoint:
        assert uploading.wait(60 if slow else 0) is slow
        return checkpoint

    monkeypatch.setattr(worker_module.checkpoint_manifest, "upload", upload)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/weights").write_bytes(b"1" * 1_260_000)
    assert worker_module._upload(Checkpoint(str(tmp_path)), "checkpoint_a001_000003").path == str(tmp_path)
    lines = ["uploading checkpoint_a001_000003, 1.3 MB", "uploaded checkpoint_a001_000003 in 0 s"]
    assert capfd.readouterr().out.splitlines() == (lines if slow else [])


# ---- a loop in a worker of Ray Train, without Ray


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What the loop's reports hand to Ray."""
    told: list[tuple[Any, Any]] = []
    size = {"get_world_rank": lambda: 1, "get_world_size": lambda: 2}
    context = SimpleNamespace(report_call_index=0, controller_actor=None, **size)
    monkeypatch.setattr(worker, "get_train_context", lambda: context)
    utils = worker.DistributedTrainFnUtils
    monkeypatch.setattr(utils, "report", lambda self, *given, **options: told.append(given[:2]))
    monkeypatch.setattr(utils, "get_checkpoint", lambda self: None)
    monkeypatch.setattr(session, "_session", None)
    monkeypatch.setattr(train_fn_utils, "_train_fn_utils", None)
    for kind, method in ((DataParallelTrainer, "fit"), (TuneController, "__init__")):
        monkeypatch.setattr(kind, method, getattr(kind, method))  # as it is, to be put back
    monkeypatch.setattr("ray.train.get_all_reported_checkpoints", lambda mode: [])
    monkeypatch.chdir(tmp_path)
    return told


def run_loop(loop: Callable[..., Any], tmp_path: Path) -> Any:
    options = WorkerOptions(str(tmp_path / "run"), 1, "python", warm_start=str(tmp_path / "warm"))
    return wrap(loop, options=options)({"lr": 0.5, "folder": str(tmp_path)})


@pytest.mark.parametrize(("continues", "expected"), [(False, ({}, 10, 0)), (True, ({"epoch": 3}, 3, 2))])
def test_a_warm_start_is_none_of_the_runs_own_checkpoints_even_if_that_run_has_the_same_name(
    tmp_path: Path,
    reports: list[tuple[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
    continues: bool,
    expected: tuple[dict[str, int], int, int],
) -> None:
    """As from staging to production. Only a trial that trains further goes on under a former name."""
    context = SimpleNamespace(get_experiment_name=lambda: "run", get_world_rank=lambda: 0)
    monkeypatch.setattr(ray.train, "get_context", lambda: context)
    model, warm = torch.nn.Linear(1, 1), tmp_path / "staging" / "run" / "checkpoint_1"
    warm.mkdir(parents=True)
    torch.save({"model": model.state_dict(), "counters": {"epoch": 3}}, warm / "state.pt")
    (warm / "run.txt").write_text("run")
    (warm / "rounds.json").write_text(json.dumps({"run": "run", "done": 7, "over": False, "best": {}}))
    order = stored.Order(rows=9, seed=0, shuffle=False, data="d")
    (warm / "rows.json").write_text(json.dumps({**order, "run": "run", "epoch": 2, "cuts": []}))
    rounds = {"num_boost_round": 10, "checkpoint_frequency": 1, "early_stopping_rounds": None}

    def loop(config: dict[str, Any]) -> Any:
        position = stored.read(uploads.own_checkpoint(), order)
        return restore(model), trees.Rounds(rounds, "model").left, position.epoch

    options = WorkerOptions(str(tmp_path / "run"), 1, "python", warm_start=str(warm), continues=continues)
    assert wrap(loop, options=options)({}) == expected


def test_the_reported_checkpoints_of_the_run_are_read_like_the_one_to_resume_from(
    tmp_path: Path, reports: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray deletes its own copy after the first of several readers, while the others wait for it."""
    run_uri = str(tmp_path / "run")
    place = RunDir.at(run_uri).location.child("checkpoint_a001_000001")
    place.child("model.txt").write(b"a model")
    of_ray = [Checkpoint(place.path, fenced_filesystem(run_uri, 1)), Checkpoint(str(tmp_path / "elsewhere"))]
    told = [ReportedCheckpoint(one, {"epoch": 1}, ReportedCheckpointStatus.COMMITTED) for one in of_ray]
    monkeypatch.setattr(worker.DistributedTrainFnUtils, "get_all_reported_checkpoints", lambda self, *given, **named: told)

    def loop(config: dict[str, Any]) -> Any:
        return train_fn_utils.get_train_fn_utils().get_all_reported_checkpoints()

    first, second = run_loop(loop, tmp_path)
    assert isinstance(first.checkpoint, OwnCheckpoint)
    with first.checkpoint.as_directory() as folder:
        assert folder == place.path, "nothing is copied from a path of this machine"
    assert (first.metrics, first.status) == ({"epoch": 1}, ReportedCheckpointStatus.COMMITTED)
    assert second.checkpoint is of_ray[1]


def test_a_report_to_ray_tune_is_one_to_ray_train(tmp_path: Path, reports: list[tuple[Any, Any]]) -> None:
    """Ray Tune's own functions look for a session that a worker of Ray Train has not, and would do nothing."""
    checkpoint = tune.Checkpoint.from_directory(tmp_path)

    def loop(config: dict[str, Any]) -> tuple[str, int, Any]:
        tune.report({"loss": config["lr"], "nan": float("nan")})
        tune.report({"loss": 0.1}, checkpoint=checkpoint)
        start = tune.get_checkpoint()
        assert start is not None
        return start.path, session.get_world_rank(), tune.get_context().get_trial_id()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_loop(loop, tmp_path) == (str(tmp_path / "warm"), 1, None)
    assert reports == [({"loss": 0.5, "nan": None}, None), ({"loss": 0.1}, checkpoint)]


def test_a_checkpoint_is_uploaded_with_its_manifest_unless_the_loop_uploads_it(
    tmp_path: Path, reports: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ray.train.report` itself passes an upload function in any case: None, where its caller gives none."""
    uploads: list[Any] = []
    told = worker.DistributedTrainFnUtils
    monkeypatch.setattr(told, "report", lambda self, *given, **options: uploads.append(options["checkpoint_upload_fn"]))
    monkeypatch.setattr(checkpoint_manifest, "upload", lambda checkpoint, name: "with a manifest")
    checkpoint = tune.Checkpoint.from_directory(tmp_path)

    def loop(config: dict[str, Any]) -> None:
        ray.train.report({"loss": 0.1}, checkpoint)
        ray.train.report({"loss": 0.1}, checkpoint, checkpoint_upload_fn=lambda checkpoint, name: "the loop's own")

    run_loop(loop, tmp_path)
    assert [upload(checkpoint, "name") for upload in uploads] == ["with a manifest", "the loop's own"]


def test_a_checkpoint_belongs_to_the_upload_once_it_is_reported(
    tmp_path: Path, reports: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray may delete its folder before `report` returns, or still be reading it; the preprocessor is already in it."""
    monkeypatch.setattr(worker.get_train_context(), "get_world_rank", lambda: 0)
    told: list[Any] = []

    def take(self: Any, metrics: Any, checkpoint: Checkpoint, *given: Any, **options: Any) -> None:
        told.append(checkpoint.get_metadata())
        shutil.rmtree(checkpoint.path)

    monkeypatch.setattr(worker.DistributedTrainFnUtils, "report", take)
    (tmp_path / "made").mkdir()

    def loop(config: dict[str, Any]) -> None:
        ray.train.report({}, Checkpoint(str(tmp_path / "made")), delete_local_checkpoint_after_upload=True)

    wrap(loop, options=WorkerOptions(str(tmp_path / "run"), 1, "python", preprocessor="pickled"))({})
    assert told == [{PREPROCESSOR: "pickled"}]
    assert not (tmp_path / "made").exists()


def test_a_loop_that_tells_ray_tune_it_is_done_ends(tmp_path: Path, reports: list[tuple[Any, Any]]) -> None:
    """As in Ray Tune, whose loops may go on for ever (`ray/tune/examples/pbt_function.py`)."""
    left = []

    def loop(config: dict[str, Any]) -> None:
        try:
            for step in itertools.count():
                tune.report({"step": step, "done": np.bool_(step == 2)})
        finally:
            left.append(True)

    assert run_loop(loop, tmp_path) is None
    assert reports == [({"step": step, "done": step == 2}, None) for step in range(3)]
    assert left == [True]


def test_a_loop_learns_from_ray_tune_what_resources_it_has(
    tmp_path: Path, reports: list[tuple[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `ray/tune/examples/xgboost_dynamic_resources_example.py`."""
    mine = SimpleNamespace(get_assigned_resources=lambda: {"CPU": 2.0})
    monkeypatch.setattr("ray.get_runtime_context", lambda: mine)
    assert run_loop(lambda config: tune.get_context().get_trial_resources().head_cpus, tmp_path) == 2.0


def train_within(config: dict[str, Any]) -> None:
    trainer = TorchTrainer(report_a_number, scaling_config=ScalingConfig(num_workers=2))
    begin(trainer)


def search_within(config: dict[str, Any]) -> None:
    begin(tune.Tuner(report_a_number, run_config=tune.RunConfig(storage_path=config["folder"])))


def search_as_of_old(config: dict[str, Any]) -> None:
    tune.run(report_a_number, storage_path=config["folder"])


def begin(trainer: Any) -> None:
    trainer.fit()


@pytest.mark.parametrize("loop", [train_within, search_within, search_as_of_old])
def test_a_loop_that_starts_a_training_of_its_own_is_refused(
    tmp_path: Path, reports: list[tuple[Any, Any]], loop: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for the resources that its worker holds."""
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 1.0})
    words = "train_loop_per_worker: got a function which fits a trainer or tuner of its own; expected the function that it"
    with pytest.raises(SpecError, match=words):
        run_loop(loop, tmp_path)


def report_a_number(config: dict[str, Any]) -> None:
    tune.report(0.5)


def report_as_a_generator(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"loss": 0.5}


async def report_later(config: dict[str, Any]) -> None:
    tune.report({"loss": 0.5})


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (report_a_number, "metrics: got 0.5; expected a dict, as in ray.train.report({'loss': 0.5})"),
        (
            report_as_a_generator,
            "train_loop_per_worker: got a generator or coroutine, which runs nothing",
        ),
        (report_later, "expected a function that calls ray.train.report(metrics)"),
    ],
)
def test_a_loop_that_cannot_report_is_told_the_line_to_write(
    tmp_path: Path, reports: list[tuple[Any, Any]], loop: Callable[..., Any], words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        run_loop(loop, tmp_path)
    assert words in caught.value.message
    assert reports == []
