"""The chain on a real Ray head: train → evaluate → batch inference, and what happens when something dies."""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from devtools import steps
from devtools.chaos import Trail
from plugin_core import (
    BatchInferSpec,
    EvaluateSpec,
    LocalCluster,
    RayCluster,
    RunConfig,
    ScalingConfig,
    TrainSpec,
    run,
)
from plugin_core.clusters.local_head import Head
from plugin_core.errors import ClusterRefusedError, InfeasibleError, SpecChangedError, StepCancelledError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from plugin_core.specs import CheckpointConfig, FailureConfig
from plugin_core.storage.location import Location
from plugin_core.supervisor.cancel import acancel
from plugin_core.supervisor.supervisor import Event, Supervisor, prepare, run_sync


def train_spec(storage: str, name: str = "train", **fields: Any) -> TrainSpec:
    run_config = RunConfig(name=name, storage_path=storage, **fields.pop("run_config", {}))
    defaults: dict[str, Any] = {
        "framework": "python",
        "train_loop_per_worker": "devtools.steps:counting_loop",
        "train_loop_config": {"epochs": 3},
    }
    return TrainSpec(**{**defaults, **fields, "run_config": run_config})


def chain(storage: str, rows: Path, cluster: Any) -> None:
    """The whole chain on one storage, each step taking the result of the one before."""
    two_workers = {"scaling_config": ScalingConfig(num_workers=2)}
    trained = run(
        train_spec(storage, run_config={"checkpoint_config": CheckpointConfig(num_to_keep=1)}, **two_workers), cluster
    )
    assert trained.metrics == {"epoch": 2, "started_at": 0, "loss": pytest.approx(1 / 3), "nan": None}
    assert trained.reports == 3
    with trained.checkpoint.as_directory() as folder:
        assert json.loads(Path(folder, "state.json").read_text()) == {"epoch": 2}
    assert trained.load().metrics["epoch"] == 2
    kept = [name for name in RunDir.at(trained.run.uri).location.names() if name.startswith("checkpoint_a")]
    assert kept == ["checkpoint_a001_000003"]
    assert RunDir.at(trained.run.uri).location.child(kept[0], ".manifest").names() == ["00000.json"]

    evaluated = run(
        EvaluateSpec(
            evaluate=steps.evaluate,
            checkpoint=trained,
            dataset=str(rows),
            thresholds={"epoch": {"min": 2}, "rows": {"max": 3}},
            run_config=RunConfig(name="evaluate", storage_path=storage),
        ),
        cluster,
    )
    assert evaluated.metrics == {"epoch": 2, "rows": 10}
    assert not evaluated.passed
    assert evaluated.failed == {"rows": "10 > max 3 (by 7)"}

    inferred = run(
        BatchInferSpec(
            predictor="devtools.steps:Predictor",
            checkpoint=trained.reference().to_json(),
            dataset=str(rows),
            config={"offset": 100},
            run_config=RunConfig(name="infer", storage_path=storage),
        ),
        cluster,
    )
    assert inferred.rows == 10
    place = RunDir.at(inferred.output).location
    table = pyarrow.dataset.dataset(place.path, filesystem=place.fs, format="parquet").to_table().to_pydict()
    assert sorted(table["prediction"]) == [x + 102 for x in range(10)]
    assert json.loads(place.parent.child("_SUCCESS.json").read() or b"")["rows"] == 10


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    pyarrow.parquet.write_table(pa.table({"x": list(range(10))}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


@pytest.mark.slow
def test_the_chain_on_local_storage(tmp_path: Path, rows: Path, cluster: LocalCluster) -> None:
    chain(str(tmp_path / "runs"), rows, cluster)


@pytest.mark.slow
def test_the_chain_on_s3(s3: str, rows: Path, cluster: LocalCluster) -> None:
    chain(s3, rows, cluster)


@pytest.mark.slow
def test_a_killed_worker_resumes_from_its_checkpoint(tmp_path: Path, cluster: LocalCluster) -> None:
    config = {"epochs": 5, "die_at": 3, "once": str(tmp_path / "died")}
    run_config = {"failure_config": FailureConfig(max_failures=1)}
    two_workers = ScalingConfig(num_workers=2)
    spec = train_spec(str(tmp_path), train_loop_config=config, run_config=run_config, scaling_config=two_workers)
    result = run(spec, cluster)
    assert result.metrics["epoch"] == 4
    assert result.run.attempt == 1
    seen = [(entry["metrics"]["epoch"], entry["metrics"]["started_at"]) for entry in read_reports(RunDir.of(spec))]
    assert (tmp_path / "died").exists()
    resumed_at = seen[-1][1]
    assert resumed_at in (2, 3), "the loop began again at its last checkpoint, at most one interval back"
    assert [epoch for epoch, _ in seen] == [*range(seen[-2][1] or resumed_at), *range(resumed_at, 5)]


@pytest.mark.slow
def test_after_success_the_stored_result_is_returned_and_another_spec_is_refused(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    spec = train_spec(str(tmp_path), train_loop_per_worker=steps.loop_without_checkpoints)
    first = run(spec, cluster)
    assert first.metrics == {"epoch": 2, "world": 1}, "the last report counts, also where none had a checkpoint"
    assert first.checkpoint is None
    assert run(spec, cluster) == first
    assert RunDir.of(spec).receipts() == [1]
    with pytest.raises(SpecChangedError, match=r"train_loop_config\.epochs"):
        run(spec.model_copy(update={"train_loop_config": {"epochs": 4}}), cluster)


@pytest.mark.slow
def test_a_user_error_is_raised_with_the_users_traceback_and_a_retry_resumes(tmp_path: Path, cluster: LocalCluster) -> None:
    config = {"epochs": 4, "raise_at": 2}
    run_config = {"failure_config": FailureConfig(max_failures=0)}
    spec = train_spec(str(tmp_path), train_loop_config=config, run_config=run_config)
    with pytest.raises(UserCodeError, match="ValueError: the data of epoch 2 is bad") as caught:
        run(spec, cluster)
    assert 'raise ValueError(f"the data of epoch {epoch} is bad")' in caught.value.details
    assert "plugin_core" not in caught.value.details, "the traceback is the user's own"
    assert RunDir.of(spec).receipts() == [1]
    with pytest.raises(UserCodeError):
        run(spec, cluster)
    assert [entry["metrics"]["epoch"] for entry in read_reports(RunDir.of(spec))] == [0, 1], (
        "the second attempt began at epoch 2"
    )


@pytest.mark.slow
def test_a_new_run_starts_warm_from_a_checkpoint_of_another(tmp_path: Path, cluster: LocalCluster) -> None:
    champion = Location.of(str(tmp_path)).child("champion")
    champion.child("state.json").write(b'{"epoch": 2}')
    spec = train_spec(str(tmp_path), "next", resume_from=champion.uri, train_loop_config={"epochs": 5})
    assert run(spec, cluster).metrics["started_at"] == 3


@pytest.mark.slow
def report_to_tune(config: dict[str, Any]) -> None:
    """As in Ray's own examples of Ray Tune."""
    import tempfile

    from ray import tune

    start = tune.get_checkpoint()
    for epoch in range(2):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "warm").write_text(str(start is not None))
            tune.report({"epoch": epoch}, checkpoint=tune.Checkpoint.from_directory(folder))


@pytest.mark.slow
def test_a_loop_that_reports_to_ray_tune_trains(tmp_path: Path, cluster: LocalCluster) -> None:
    result = run(train_spec(str(tmp_path), train_loop_per_worker=report_to_tune), cluster)
    assert (result.metrics, result.reports, result.warnings) == ({"epoch": 1}, 2, [])
    with result.checkpoint.as_directory() as folder:
        assert Path(folder, "warm").read_text() == "False"


def report_nothing(config: dict[str, Any]) -> None:
    pass


@pytest.mark.slow
def test_a_training_that_reports_nothing_warns_and_fails_where_it_must_not(tmp_path: Path, cluster: LocalCluster) -> None:
    result = run(train_spec(str(tmp_path), train_loop_per_worker=report_nothing), cluster)
    assert result.checkpoint is None
    assert "the training reported nothing" in result.warnings[0]
    score = {"checkpoint_config": CheckpointConfig(checkpoint_score_attribute="loss")}
    with pytest.raises(UserCodeError, match="checkpoint_score_attribute: got 'loss', but the training reported nothing"):
        run(train_spec(str(tmp_path), "scored", train_loop_per_worker=report_nothing, run_config=score), cluster)


@pytest.mark.slow
def test_cancel_stops_a_training_and_frees_its_cpus(tmp_path: Path, cluster: LocalCluster, head: Head) -> None:
    spec = train_spec(str(tmp_path), train_loop_config={"epochs": 1000, "sleep_s": 0.2})
    rundir = run_sync(prepare(spec, cluster))
    failed: list[BaseException] = []

    def call() -> None:
        try:
            run(spec, cluster)
        except StepCancelledError as exc:
            failed.append(exc)

    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + 600
    while not read_reports(rundir) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert run_sync(acancel(rundir, cluster)) == "cancelled"
    thread.join(60)
    assert len(failed) == 1
    result = run(train_spec(str(tmp_path), "after", train_loop_config={"epochs": 1}), cluster)
    assert result.metrics["epoch"] == 0, "the CPUs of the cancelled step are free for the next"


@pytest.mark.slow
def test_a_new_orchestrator_attaches_to_the_running_job(tmp_path: Path, cluster: LocalCluster) -> None:
    trail, events = Trail(tmp_path / "trail.jsonl"), list[Event]()
    loop = {"steps": 5, "every": 1, "trail": str(trail.file)}
    spec = train_spec(str(tmp_path), train_loop_per_worker="devtools.loops:stepping", train_loop_config=loop)

    def listen(event: Event) -> None:
        if event.kind == "report" and not any(earlier.kind == "report" for earlier in events):
            trail.release()
        events.append(event)

    trail.hold(4)
    run_sync(Supervisor(run_sync(prepare(spec, cluster)), cluster).submit())
    result = run(spec, cluster, listen)
    assert result.metrics["step"] == 4
    assert RunDir.of(spec).receipts() == [1]
    assert [event.data["metrics"]["step"] for event in events if event.kind == "report"] == [0, 1, 2, 3, 4]
    log = "\n".join(event.text for event in events if event.kind == "log")
    assert log.count("result: {") == 1, "the job's log is told whole and once"


@pytest.mark.slow
def test_execute_runs_the_same_step_in_this_process(tmp_path: Path) -> None:
    """In a process of its own, since it starts a Ray there; a second call returns what the first stored."""
    code = f"""
from plugin_core import RunConfig, TrainSpec, execute
spec = TrainSpec(framework="python", train_loop_per_worker="devtools.steps:loop_without_checkpoints",
                 train_loop_config={{"epochs": 2}}, run_config=RunConfig(name="here", storage_path={str(tmp_path)!r}))
first = execute(spec)
assert execute(spec) == first
print("METRICS", first.metrics)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "METRICS {'epoch': 1, 'world': 1}" in done.stdout, done.stderr


@pytest.mark.slow
def test_xgboost_is_declared_by_params_and_resumes(tmp_path: Path, cluster: LocalCluster) -> None:
    x = list(range(200))
    table = pa.table({"x": x, "y": [int(value >= 100) for value in x]})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    spec = TrainSpec(
        framework="xgboost",
        params={"objective": "binary:logistic", "max_depth": 2},
        label_column="y",
        num_boost_round=12,
        datasets={"train": str(tmp_path / "train.parquet")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="trees", storage_path=str(tmp_path)),
    )
    result = run(spec, cluster)
    assert result.metrics["train-logloss"] < 0.2
    assert result.reports == 12, "one a round"
    from ray.train.xgboost import RayTrainReportCallback

    assert RayTrainReportCallback.get_model(result.checkpoint.to_ray()).num_boosted_rounds() == 12


def actors(head: Head) -> Counter[str]:
    """How many actors of each class a head has had, living or dead."""
    query = urllib.request.Request(f"{head.address}/api/v0/actors?limit=10000")
    query.add_header("Authorization", f"Bearer {head.token}")
    with urllib.request.urlopen(query, timeout=30) as answer:
        return Counter(actor["class_name"] for actor in json.load(answer)["data"]["result"]["result"])


def test_torch_trains_with_two_workers_on_one_model(tmp_path: Path, head: Head, cluster: LocalCluster) -> None:
    """The digits of scikit-learn, one epoch: two ranks, gradients averaged, so both end with the same weights. Ray Train
    starts no helper process that this training does not need."""
    before = actors(head)
    spec = train_spec(
        str(tmp_path),
        framework="torch",
        train_loop_per_worker=steps.torch_loop,
        scaling_config=ScalingConfig(num_workers=2),
    )
    result = run(spec, cluster)
    assert result.metrics["world"] == 2
    assert result.metrics["accuracy"] > 0.8
    assert result.metrics["weights"] == [pytest.approx(result.metrics["weights"][0])] * 2
    started = actors(head) - before
    assert started["RayTrainWorker"] == 2
    helpers = {"TrainController", "DatasetManager", "PlacementGroupCleaner", "PreemptionWatcher"}
    assert helpers.isdisjoint(started), started


def test_a_run_on_a_path_that_the_cluster_does_not_see_is_refused_with_its_name(tmp_path: Path, head: Head) -> None:
    """The driver gets another path than the orchestrator wrote to, as on a cluster without that mount."""

    class Elsewhere(RayCluster):
        def driver_command(self) -> list[str]:
            return [*super().driver_command(), "/nowhere/at/all", "1", "x"]

    cluster = Elsewhere(head.address, head.token, python=sys.executable)
    with pytest.raises(Exception, match="this path is not shared with the cluster"):
        run(train_spec(str(tmp_path)), cluster)


class TestRefusedByARealHead:
    def test_a_wrong_token_and_none(self, tmp_path: Path, head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
        for token in ("wrong", None):
            with pytest.raises(ClusterRefusedError, match=r"token: .* returned 40[13] for"):
                run(train_spec(str(tmp_path)), RayCluster(head.address, token))

    def test_more_workers_than_fit(self, tmp_path: Path, cluster: LocalCluster) -> None:
        words = "scaling_config: infeasible, the step takes 9 CPUs; expected up to 4 CPUs"
        with pytest.raises(InfeasibleError, match=words):
            run(train_spec(str(tmp_path), scaling_config=ScalingConfig(num_workers=9)), cluster)
        with pytest.raises(InfeasibleError, match="1 GPU; expected up to 0 GPUs"):
            run(train_spec(str(tmp_path), scaling_config=ScalingConfig(use_gpu=True)), cluster)
