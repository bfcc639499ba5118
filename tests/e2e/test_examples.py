"""The example flows, run as the documentation says: from a shell, with a Prefect server of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import mlflow
import pyarrow.parquet
import pytest
from prefect.client.orchestration import get_client

from devtools.servers import mlflow_server
from tests.e2e.prefect_runs import Process, start

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.usefixtures("head")


def run(command: list[str], home: Path) -> dict[str, str]:
    """Run an example; returns the table that it prints at its end."""
    return dict(re.findall(r"^│ (.+?) +│ (.+?) +│$", told(command, home), re.MULTILINE))


def told(command: list[str], home: Path) -> str:
    """What an example prints."""
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return _output(command, {**environment, "PREFECT_HOME": str(home), "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage")})


def run_dags(folder: Path, *dags: str) -> None:
    """Run example DAGs in an Airflow of their own, under `folder`; without names the digits."""
    _output(["example_dags/demo.py", *dags], {**os.environ, "DEMO_FOLDER": str(folder)})


def _output(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=1500
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_digits_reaches_its_accuracy_and_writes_what_it_prints(tmp_path: Path) -> None:
    table = run(["-m", "example_flows.digits", str(tmp_path / "runs")], tmp_path / "prefect")
    assert float(table["test accuracy"]) >= 0.95
    assert table["test rows"] == table["predicted rows"] == "360"
    assert Path(table["run directory"], ".step", "result.json").is_file()
    assert Path(table["checkpoint"], "state.pt").is_file()
    predictions = pyarrow.parquet.read_table(table["predictions"]).to_pandas()
    assert (predictions["prediction"] == predictions["label"]).mean() == pytest.approx(
        float(table["test accuracy"]), abs=1e-4
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_both_engines_track_the_digits_and_the_run_says_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_api: str
) -> None:
    with mlflow_server(tmp_path / "mlflow") as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        # on a server that stays, since a flow run has no page on one that goes with it
        _output(["-m", "example_flows.digits", str(tmp_path / "runs")], {**os.environ, "PREFECT_API_URL": prefect_api})
        run_dags(tmp_path / "airflow")
        client = mlflow.MlflowClient(uri)
        experiment = client.get_experiment_by_name("digits")
        assert experiment is not None
        tags = [run.data.tags for run in client.search_runs([experiment.experiment_id])]
    trainings = {given["raytrain.orchestrator"]: given for given in tags if given["raytrain.kind"] == "train"}
    assert "/dags/digits/runs/" in trainings["airflow"]["raytrain.engine_url"]
    assert trainings["airflow"]["raytrain.airflow_task_id"] == "train"
    assert trainings["prefect"]["raytrain.prefect_flow"] == "digits"
    flow_run = trainings["prefect"]["raytrain.prefect_flow_run"]
    assert trainings["prefect"]["raytrain.engine_url"].endswith(f"/runs/flow-run/{flow_run}")
    assert flow_run in trainings["prefect"]["mlflow.note.content"]
    assert len(tags) == 6, "train, evaluate and batch inference of each"


@pytest.mark.slow
def test_breast_cancer_is_trained_without_a_train_loop(tmp_path: Path) -> None:
    table = run(["example_flows/breast_cancer_xgboost.py", str(tmp_path / "runs")], tmp_path / "prefect")
    assert float(table["test auc"]) >= 0.97
    assert float(table["test accuracy"]) >= 0.93
    assert Path(table["checkpoint"]).is_dir()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_population_based_training_finds_a_champion(tmp_path: Path) -> None:
    table = run(["-m", "example_flows.tune_pbt", str(tmp_path / "runs")], tmp_path / "prefect")
    assert float(table["test accuracy"]) >= 0.85
    assert table["test rows"] == table["predicted rows"] == "360"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_loop_beats_or_keeps_the_champion_depending_on_the_months_data(tmp_path: Path) -> None:
    said = told(["-m", "example_flows.loop", str(tmp_path / "runs")], tmp_path / "prefect")
    outcomes = re.findall(r"^(\w+): (\w+): .*; the champion is version (\d)$", said, re.MULTILINE)
    assert outcomes == [("january", "promoted", "1"), ("february", "promoted", "2"), ("march", "kept", "2")]
    assert re.findall(r"^(\w+): 360 predictions of it in ", said, re.MULTILINE) == ["january", "february", "march"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_subject_is_learned_as_in_dreambooth(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    table = run(["-m", "example_flows.dreambooth", str(tmp_path / "runs")], tmp_path / "prefect")
    assert float(table["test subject_loss"]) < 0.5, "1 is the noise itself"
    assert table["predicted rows"] == "64"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_loop_and_the_search_as_dags_in_a_real_airflow(tmp_path: Path) -> None:
    run_dags(tmp_path, "tune_and_train", "loop")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_dag_promotes_a_champion_in_mlflow_and_another_dag_predicts_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`example_dags/champion.py`, which docs/airflow-example.md shows."""
    with mlflow_server(tmp_path / "mlflow") as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        run_dags(tmp_path / "airflow", "champion")
        kinds = champion_and_tracked_kinds(uri)
    assert kinds == ["batch_infer", "evaluate", "train"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_flow_promotes_a_champion_in_mlflow_and_another_flow_predicts_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_api: str
) -> None:
    """`example_flows/champion.py`, served as docs/prefect-example.md says."""
    storage = tmp_path / "runs"
    with mlflow_server(tmp_path / "mlflow") as uri, get_client(sync_client=True) as client:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        monkeypatch.setenv("EXAMPLE_STORAGE", str(storage))
        served = Process(["-m", "example_flows.champion"], tmp_path / "served.log")
        try:
            early = start(client, "predict-with-champion/daily", storage)
            early.wait_for("Failed")
            assert "nothing was promoted yet" in early.flow_run.state.message
            start(client, "train-champion/weekly", storage).wait_for("Completed")
            predicted = start(client, "predict-with-champion/daily", storage)
            predicted.wait_for("Completed")
        finally:
            served.close()
        kinds = champion_and_tracked_kinds(uri)
    assert kinds == ["batch_infer", "evaluate", "train"]
    (rundir,) = predicted.rundirs()
    assert rundir.result().rows == 360


def champion_and_tracked_kinds(uri: str) -> list[str]:
    """The kinds of the steps that MLflow has tracked, after a look at the champion in its registry."""
    client = mlflow.MlflowClient(uri)
    champion = client.get_model_version_by_alias("digits", "champion")
    assert json.loads(champion.tags["raytrain.metrics"])["accuracy"] >= 0.9
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    return sorted(run.data.tags["raytrain.kind"] for run in client.search_runs([experiment.experiment_id]))


def test_the_digits_spec_file_is_a_valid_spec() -> None:
    from plugin_core import TrainSpec, load_spec

    spec = load_spec(ROOT / "example_flows" / "digits.yaml")
    assert isinstance(spec, TrainSpec)
    assert spec.scaling_config.num_workers == 2
