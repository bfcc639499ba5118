"""Each tracker's part alone, on the real thing: a journal in, one run out, read back with the tracker's own reader."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from devtools.chaos import wait_until
from devtools.servers import mlflow_server
from devtools.steps import counting_loop
from plugin_core import Comet, MLflow, RunConfig, RunRef, TensorBoard, TrainResult, TrainSpec, WandB
from plugin_core.clusters.local_head_keeper import free_ports
from plugin_core.errors import InfrastructureError, SpecError
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.tracking.replay import replay
from plugin_core.tracking.wandb_log import is_complete
from tests.support.trackers import comet_metric, history, run_id_of, tensorboard_events, wandb_records

#: As two attempts leave it: the first was killed after its checkpoint 3 and two reports more, which the second repeats.
INDICES = [1, 2, 3, 4, 5, 4, 5, 6, 7]
STEPS = [1, 2, 3, 4, 5, 6, 7]
CHECKPOINTS = {3: "checkpoint_a001_000003", 7: "checkpoint_a002_000007"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as uri:
        yield uri


def finished(tmp_path: Path, tracker: Any, name: str = "run", metrics: Any = None, outcome: str = "succeeded") -> RunDir:
    """A run that is over, without having run."""
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=counting_loop,
        train_loop_config={"lr": 0.1, "model": {"layers": 2}},
        tracking=[tracker],
        run_config=RunConfig(name=name, storage_path=str(tmp_path)),
    )
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    lines: dict[int, list[str]] = {1: [], 2: []}
    for number, index in enumerate(INDICES, start=1):
        attempt = 1 if number <= 5 else 2
        entry = {"attempt": attempt, "time": 1000.0 + number, "report": number, "index": index}
        given = {"loss": 1 / index, "epoch": index - 1, "attempt": attempt} if metrics is None else metrics
        lines[attempt].append(json.dumps({**entry, "metrics": given, "checkpoint": CHECKPOINTS.get(index)}))
    for attempt in (1, 2):
        rundir.claim(attempt, "test", "test")
        rundir.step.child("journal", f"{attempt:03}-0001.jsonl").write("\n".join(lines[attempt]).encode() + b"\n")
    if outcome == "succeeded":
        rundir.write_result(TrainResult(run=RunRef(uri=rundir.uri, name=name, attempt=2), metrics={}))
    rundir.record_end(2, AttemptEnd(outcome, "" if outcome == "succeeded" else "as tested"))
    return rundir


def test_mlflow_has_one_run_with_every_step_once_however_often_it_is_logged(server: str, tmp_path: Path) -> None:
    rundir = finished(tmp_path, MLflow(tracking_uri=server, experiment_name="once", tags={"team": "a"}))
    (links,) = replay(rundir).values()
    client = mlflow.MlflowClient(server)
    run_id = run_id_of(rundir)
    client.delete_tag(run_id, "raytrain.reports")  # as if the process had died before it could note how far it was
    replay(rundir)
    experiment = client.get_experiment_by_name("once")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert history(server, run_id, "loss") == [(step, 1 / step) for step in STEPS]
    assert [value for _, value in history(server, run_id, "attempt")] == [1, 1, 1, 1, 1, 2, 2]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["lr"] == "0.1"
    assert run.data.params["model.layers"] == "2"
    assert run.data.params["scaling_config.num_workers"] == "1"
    assert run.data.tags["team"] == "a"
    assert run.data.tags["raytrain.run"] == rundir.uri
    assert run.data.tags["raytrain.checkpoint"] == f"{rundir.uri}/checkpoint_a002_000007"
    assert links["mlflow"] == f"{server}/#/experiments/{experiment.experiment_id}/runs/{run_id}"


def test_mlflow_gets_how_a_run_ended_and_at_which_user_step(server: str, tmp_path: Path) -> None:
    for name, outcome, status in (("bad", "user_error", "FAILED"), ("cancelled", "cancelled", "KILLED")):
        tracker = MLflow(tracking_uri=server, experiment_name="ends", step_metric="epoch")
        rundir = finished(tmp_path, tracker, name, outcome=outcome)
        replay(rundir)
        run = mlflow.MlflowClient(server).get_run(run_id_of(rundir))
        assert (run.info.status, run.data.tags["raytrain.error"]) == (status, "as tested")
        assert [step for step, _ in history(server, run.info.run_id, "loss")] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_mlflow_takes_metrics_of_any_name_and_number(server: str, tmp_path: Path) -> None:
    many = {f"layer {number}/norm": number for number in range(2500)}
    odd = {"val": {"acc@1": 0.5, "acc#1": 0.6}, "nan": None, "text": "good", "ünïcode": 1, "x" * 400: 2, "flag": True}
    rundir = finished(tmp_path, MLflow(tracking_uri=server), metrics={**many, **odd})
    replay(rundir)
    metrics = mlflow.MlflowClient(server).get_run(run_id_of(rundir)).data.metrics
    assert len([name for name in metrics if not name.startswith("ledger/")]) == 2500 + 6
    assert metrics["layer 2499/norm"] == 2499
    assert {metrics["val/acc_1"], metrics["val/acc_1_2"]} == {0.5, 0.6}
    assert metrics["nan"] != metrics["nan"]
    assert metrics["x" * 250] == 2
    assert "text" not in metrics


def test_mlflow_refuses_runs_that_it_cannot_log_into(server: str, tmp_path: Path) -> None:
    client = mlflow.MlflowClient(server)
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(SpecError, match=r"tracking.mlflow.experiment_name: got 'gone', which is deleted"):
        replay(finished(tmp_path, MLflow(tracking_uri=server, experiment_name="gone")))
    first = finished(tmp_path, MLflow(tracking_uri=server), "first")
    replay(first)
    second = finished(tmp_path, MLflow(tracking_uri=server, run_id=run_id_of(first)), "second")
    with pytest.raises(SpecError, match=f"tracking.mlflow.run_id: got '{run_id_of(first)}', which belongs to {first.uri}"):
        replay(second)
    (port,) = free_ports(1)
    with pytest.raises(InfrastructureError, match=r"tracking.mlflow: cannot be reached"):
        replay(finished(tmp_path, MLflow(tracking_uri=f"http://127.0.0.1:{port}"), "away"))


def test_an_existing_run_of_the_user_is_logged_into(server: str, tmp_path: Path) -> None:
    client = mlflow.MlflowClient(server)
    own = client.create_run(client.create_experiment("own"), run_name="mine").info.run_id
    replay(finished(tmp_path, MLflow(tracking_uri=server, run_id=own)))
    assert [step for step, _ in history(server, own, "loss")] == STEPS
    assert client.get_run(own).info.run_name == "mine"


@pytest.mark.slow
def test_eight_runs_at_once_are_eight_in_a_new_experiment(server: str, tmp_path: Path) -> None:
    metrics = [{"number": number} for number in range(8)]
    rundirs = [
        finished(tmp_path, MLflow(tracking_uri=server, experiment_name="eight"), f"run-{number}", metrics=metrics[number])
        for number in range(8)
    ]
    commands = [[sys.executable, "-m", "plugin_core.cli", "track", rundir.uri] for rundir in rundirs]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for command in commands]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, errors
    client = mlflow.MlflowClient(server)
    experiment = client.get_experiment_by_name("eight")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 8
    for number, rundir in enumerate(rundirs):
        assert history(server, run_id_of(rundir), "number") == [(step, number) for step in STEPS]


def test_mlflow_gets_the_kept_checkpoints_if_asked(server: str, tmp_path: Path) -> None:
    rundir = finished(tmp_path, MLflow(tracking_uri=server, log_checkpoints=True))
    rundir.location.child(CHECKPOINTS[7], "state.json").write(b"{}")  # and the other is deleted
    rundir.location.child(CHECKPOINTS[7], "parts", "0.bin").write(b"0")
    replay(rundir)
    artifacts = mlflow.artifacts.list_artifacts(run_id=run_id_of(rundir), tracking_uri=server, artifact_path="checkpoints")
    assert [artifact.path for artifact in artifacts] == ["checkpoints/checkpoint_a002_000007"]
    folder = mlflow.artifacts.download_artifacts(
        run_id=run_id_of(rundir), tracking_uri=server, artifact_path=artifacts[0].path
    )
    assert Path(folder, "state.json").read_text() == "{}"
    assert Path(folder, "parts", "0.bin").read_bytes() == b"0"


def test_tensorboard_reads_every_step_once_from_the_run_directory(tmp_path: Path) -> None:
    rundir = finished(tmp_path, TensorBoard())
    for _ in range(2):
        (links,) = replay(rundir).values()
        read = tensorboard_events(Path(links["tensorboard"]), "loss")
        assert [event.step for event in read] == STEPS
        assert [event.value for event in read] == pytest.approx([1 / step for step in STEPS])
        assert [event.wall_time for event in read] == [1001, 1002, 1003, 1004, 1005, 1008, 1009]


def test_wandb_offline_has_one_run_with_every_step_once(tmp_path: Path) -> None:
    rundir = finished(tmp_path, WandB(project="digits", mode="offline", tags=["t"]))
    for _ in range(2):
        (links,) = replay(rundir).values()
        history, config, run = wandb_records(Path(links["wandb"]))
        assert [row["_step"] for row in history] == STEPS
        assert [row["loss"] for row in history] == [1 / step for step in STEPS]
        assert (run["project"], run["display_name"]) == ("digits", "run")
        assert config["lr"] == 0.1
        assert config["raytrain.run"] == rundir.uri


def test_an_offline_wandb_run_is_stored_when_its_service_has_written_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`finish` returns before the service writes its log. Here the service takes a second for that."""
    from wandb.sdk.wandb_run import Run

    writers: list[threading.Timer] = []
    finish = Run.finish

    def finish_before_it_is_written(run: Any, **how: Any) -> None:
        finish(run, **how)
        (log,) = Path(run.dir).parent.glob("*.wandb")
        wait_until(lambda: is_complete(log))
        writers.append(threading.Timer(1.0, log.write_bytes, [log.read_bytes()]))
        log.write_bytes(log.read_bytes()[:7])
        writers[-1].start()

    monkeypatch.setattr(Run, "finish", finish_before_it_is_written)
    (links,) = replay(finished(tmp_path, WandB(project="digits", mode="offline"))).values()
    (writer,) = writers
    writer.join()
    history, _, _ = wandb_records(Path(links["wandb"]))
    assert [row["_step"] for row in history] == STEPS


@pytest.mark.slow
def test_comets_archive_has_every_step_once(tmp_path: Path) -> None:
    rundir = finished(tmp_path, Comet(project_name="digits", mode="offline"))
    for _ in range(2):
        (links,) = replay(rundir).values()
        assert comet_metric(Path(links["comet"]), "loss") == [(step, 1 / step) for step in STEPS]


@pytest.mark.slow
def test_the_command_logs_what_was_missed(server: str, tmp_path: Path) -> None:
    rundir = finished(tmp_path, MLflow(tracking_uri=server, experiment_name="by hand"))
    command = [sys.executable, "-m", "plugin_core.cli", "track", rundir.uri]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"mlflow: {server}/#/experiments/" in done.stdout
    assert [step for step, _ in history(server, run_id_of(rundir), "loss")] == STEPS
