"""One training is one tracking run, whatever is killed: the training's processes, or the tracker."""

import contextlib
import json
from pathlib import Path
from typing import Any

import mlflow
import pytest

from devtools.chaos import Running, Trail, drivers, kill, spec_at, wait_until
from devtools.servers import mlflow_server
from plugin_core import Comet, LocalCluster, MLflow, TensorBoard, WandB
from plugin_core.clusters.local_head_keeper import free_ports
from plugin_core.tracking.replay import replay
from tests.support.trackers import comet_metric, history, run_id_of, tensorboard_events, wandb_records

STEPS = 15
LOOP = {"steps": STEPS, "report_all": True}


def all_there(uri: str, running: Running, steps: int = STEPS) -> None:
    """MLflow has one run of the training, with every step once, in order, and what was reported there."""
    client = mlflow.MlflowClient(uri)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    (run,) = [run for run in runs if run.data.tags.get("raytrain.run") == running.rundir.uri]
    assert run.info.run_id == run_id_of(running.rundir)
    assert history(uri, run.info.run_id, "step") == [(number + 1, number) for number in range(steps)]
    assert history(uri, run.info.run_id, "total") == [(n + 1, sum(range(n + 1))) for n in range(steps)]
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_two_workers_and_two_drivers_are_killed_and_each_tracker_has_one_run(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    with mlflow_server(tmp_path / "mlflow") as uri:
        trackers = [MLflow(tracking_uri=uri), WandB(mode="offline"), TensorBoard(), Comet(mode="offline")]
        trail.hold(4)
        running = Running(spec_at(tmp_path, trail.file, loop=LOOP, tracking=trackers), cluster)
        for number, step in enumerate((4, 7, 10, 13), start=1):
            trail.hold(step)
            trail.wait_for(step)
            kill(trail.entries(rank=1)[-1]["pid"] if step < 10 else drivers(running.rundir.uri)[0])
            trail.wait_for_process(number + 1)
        trail.release()
        result = running.result()
        assert trail.repeated() > 0, "something was trained again, and so reported again"
        all_there(uri, running)
        assert sorted(result.tracking) == ["comet", "mlflow", "tensorboard", "wandb"]
        assert result.warnings == []
    expected = [(number + 1, number) for number in range(STEPS)]
    assert comet_metric(Path(result.tracking["comet"]), "step") == expected
    events = tensorboard_events(Path(result.tracking["tensorboard"]), "step")
    assert [(event.step, event.value) for event in events] == expected
    rows, _, _ = wandb_records(Path(result.tracking["wandb"]))
    assert [(row["_step"], row["step"]) for row in rows] == expected


@pytest.mark.slow
def test_the_mlflow_server_is_away_for_twenty_seconds_and_nothing_is_missing(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        uri = stack.enter_context(mlflow_server(tmp_path / "mlflow", port))
        trail.hold(90)
        loop = {**LOOP, "steps": 100, "step_s": 0.5}
        spec = spec_at(tmp_path, trail.file, loop=loop, tracking=MLflow(tracking_uri=uri))
        running = Running(spec, cluster)
        trail.wait_for(5)
        stack.close()
        before = len(trail.entries())
        # twenty seconds, told by the training that goes on meanwhile
        wait_until(lambda: len(trail.entries()) >= before + 40)
        stack.enter_context(mlflow_server(tmp_path / "mlflow", port))
        trail.release()
        result = running.result()
        all_there(uri, running, 100)
        assert result.warnings == []
        assert trail.repeated() == 0


@pytest.mark.slow
def test_a_server_that_stays_away_is_a_warning_and_catches_up_later(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    (port,) = free_ports(1)
    tracker = MLflow(tracking_uri=f"http://127.0.0.1:{port}")
    running = Running(spec_at(tmp_path, trail.file, loop=LOOP, tracking=tracker), cluster)
    result = running.result()
    assert result.metrics["step"] == STEPS - 1
    (warning,) = result.warnings
    assert warning.startswith("tracking.mlflow: some reports are missing")
    assert f"`raytrain track {running.rundir.uri}` logs them" in warning
    with mlflow_server(tmp_path / "mlflow", port) as uri:
        replay(running.rundir)
        all_there(uri, running)


@pytest.mark.slow
def test_native_calls_join_the_run_and_those_of_other_ranks_create_none(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    with mlflow_server(tmp_path / "mlflow") as uri:
        spec = spec_at(
            tmp_path,
            trail.file,
            train_loop_per_worker=native,
            tracking=[MLflow(tracking_uri=uri), WandB(mode="offline")],
            runtime_env={"env_vars": {"WANDB_DIR": str(tmp_path)}},
        )
        running = Running(spec, cluster)
        running.result()
        client = mlflow.MlflowClient(uri)
        runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
        (run,) = runs
        assert run.data.metrics["native"] == 7
        assert run.data.metrics["reported"] == 1
        assert run.info.status == "FINISHED"
    rows, _, own = wandb_records(tmp_path / "wandb")
    assert [row["native"] for row in rows] == [7]
    assert own["id"] == json.loads(running.rundir.step.child("tracking", "wandb.json").read() or b"")["run_id"]


def native(config: dict[str, Any]) -> None:
    """Logs with the trackers' own calls in every rank, without regard to ranks."""
    import mlflow
    import ray.train
    import wandb

    with mlflow.start_run():
        mlflow.log_metric("native", 7)
    with wandb.init() as run:
        run.log({"native": 7})
    ray.train.report({"reported": 1})
