"""Marked secrets in every place that takes one; a chain by CLI, Prefect and Airflow with failures injected; then a search
of everything that is left, and of what `ps` showed meanwhile."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from airflow_provider.testing import AirflowServer
from devtools.chaos import wait_until
from devtools.servers import environment, s3_endpoint
from plugin_core.clusters.local_head import Head
from plugin_core.runs.directory import RunDir
from tests.e2e.airflow_server import STORAGE_KEY
from tests.support.canaries import CommandLines, canary, found_in, found_in_temp, found_under, plain_canary
from tests.support.canary_steps import BLOCK, evaluate_fields, infer_fields, train_fields

ROOT = Path(__file__).parents[2]
RAYTRAIN = str(Path(sys.executable).with_name("raytrain"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

#: Where a secret may stand, and why.
ALLOWED = {
    "state.json": "the embedded head's address and token, which its owner alone may read",
}


@dataclass
class Secrets:
    """One canary a place. `header` goes to a proxy, `key` signs requests of storage, `mlflow` is a tracker's."""

    token: str
    variable: str
    file: str
    header: str
    storage: str
    mlflow: str

    @property
    def all(self) -> list[str]:
        return [self.token, self.variable, self.file, self.header, self.storage, self.mlflow]

    def env_vars(self, folder: Path) -> dict[str, str]:
        return {
            "SERVICE_KEY": self.variable,
            "OUR_KEY": "testing",
            "OUR_SECRET": self.storage,
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
            "MLFLOW_TRACKING_PASSWORD": self.mlflow,
        }

    @property
    def env_files(self) -> dict[str, str]:
        return {"SERVICE_FILE": f"[default]\ntoken = {self.file}\n"}


@dataclass
class Place:
    folder: Path
    storage: str
    rows: str
    head: Head
    secrets: Secrets

    def cancel_when_it_trains(self, find: Callable[[], RunDir | None]) -> threading.Thread:
        """Cancels a run by `raytrain cancel` as soon as it has reported."""

        def work() -> None:
            wait_until(lambda: (run := find()) is not None and bool(run.step.child("journal").names()))
            run = find()
            assert run is not None
            words = [RAYTRAIN, "cancel", run.uri, "--address", self.head.address]
            self.call(words, RAY_AUTH_TOKEN=self.head.token)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def call(self, words: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program; what it prints is kept in the folder that is searched."""
        where = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        done = subprocess.run(words, env=where, cwd=ROOT, capture_output=True, text=True, errors="replace")
        name = f"{len(list(self.folder.glob('*.out'))):02}-{threading.get_ident()}.out"
        (self.folder / name).write_text(f"{done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def runs(self, named: str) -> list[RunDir]:
        """The runs on the storage whose name contains this."""
        from plugin_core.storage.location import Location

        place = Location.of(self.storage)
        return [RunDir(place.child(name)) for name in place.names() if named in name]


@pytest.fixture
def place(tmp_path: Path, s3: str, head: Head) -> Any:
    header, mlflow = plain_canary("header"), plain_canary("mlflow")
    secrets = Secrets(head.token, canary("variable"), canary("file"), header, STORAGE_KEY, mlflow)
    (tmp_path / "rows.csv").write_text("x\n" + "\n".join(map(str, range(10))) + "\n")
    base, _, options = s3.partition("?")
    storage = f"{base}/{tmp_path.name}?{options}&access_key=$OUR_KEY&secret_key=$OUR_SECRET"
    # what opens the storage on this side; the cluster's processes have it from what is handed over
    here = {"OUR_KEY": "testing", "OUR_SECRET": secrets.storage, "RAYTRAIN_URI_VARIABLES": "OUR_KEY,OUR_SECRET"}
    with environment(here):
        yield Place(tmp_path, storage, str(tmp_path / "rows.csv"), head, secrets)


def by_cli(place: Place) -> None:
    """The command line has a token but hands nothing over, so its runs are on local storage."""
    storage = str(place.folder / "cli")

    def run(
        name: str, kind: str, fields: dict[str, Any], token: str = place.head.token
    ) -> subprocess.CompletedProcess[str]:
        spec = place.folder / f"{name}.yaml"
        spec.write_text(yaml.safe_dump({"kind": kind, **fields}))
        return place.call([RAYTRAIN, "run", str(spec), "--address", place.head.address], RAY_AUTH_TOKEN=token)

    def train(what: str) -> dict[str, Any]:
        return train_fields(what, storage, with_secrets=False)

    trained = run("chain", "train", train("chain"))
    assert trained.returncode == 0, trained.stderr
    checkpoint = json.loads(trained.stdout)["checkpoint"]
    for name, kind, fields in (("judged", "evaluate", evaluate_fields), ("predicted", "batch_infer", infer_fields)):
        done = run(name, kind, fields(checkpoint, storage, place.rows))
        assert done.returncode == 0, done.stderr
    assert run("submit", "train", train("submit")).returncode == 2
    assert run("refused", "train", train("chain"), token=place.secrets.header).returncode == 2
    assert run("loop", "train", train("loop")).returncode == 10
    cancelling = place.cancel_when_it_trains(lambda: RunDir.at(f"{storage}/cancel"))
    assert run("cancel", "train", train("cancel")).returncode == 14
    cancelling.join()


def by_prefect(place: Place, api: str) -> None:
    from pydantic import SecretStr

    from prefect_integration import RayCluster

    secrets = place.secrets
    RayCluster(
        address=place.head.address,
        token=SecretStr(secrets.token),
        headers={"X-Proxy": secrets.header},
        env_vars=secrets.env_vars(place.folder),
        env_files=secrets.env_files,
        python=sys.executable,
    ).save(BLOCK)

    def run(what: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "tests.support.canary_steps", what, place.storage, place.rows]
        return place.call(words, PREFECT_API_URL=api)

    chain = run("chain")
    assert chain.returncode == 0, chain.stderr
    refused, failed = run("submit"), run("loop")
    assert "runtime_env.working_dir" in refused.stderr
    assert "the data is bad" in failed.stderr
    before = {run.name for run in place.runs("train")}
    cancelling = place.cancel_when_it_trains(
        lambda: next((run for run in place.runs("train") if run.name not in before), None)
    )
    assert "StepCancelledError" in run("cancel").stderr
    cancelling.join()


def by_airflow(place: Place, airflow: AirflowServer) -> None:
    secrets = place.secrets
    host, _, port = place.head.address.removeprefix("http://").partition(":")
    extra = {
        "headers": {"X-Proxy": secrets.header},
        "env_vars": secrets.env_vars(place.folder),
        "env_files": secrets.env_files,
    }
    connection = {"conn_type": "rayjobs", "host": host, "port": int(port), "password": secrets.token, "extra": extra}
    file = place.folder / "connections.json"
    file.write_text(json.dumps({"canaries": connection}))
    told = airflow.command("connections", "import", str(file))
    file.unlink()  # the test's own
    (place.folder / "import.out").write_text(told)

    conf = {"storage": place.storage, "rows": place.rows}
    ended = {}
    for what in ("chain", "submit", "loop"):
        run_id = airflow.trigger(f"canaries_{what}", conf)
        ended[what] = airflow.wait(f"canaries_{what}", run_id), airflow.task_log(f"canaries_{what}", run_id, "train")
    assert ended["chain"][0] == "success", ended["chain"][1]
    assert (ended["submit"][0], ended["loop"][0]) == ("failed", "failed")
    assert "runtime_env.working_dir" in ended["submit"][1]
    run_id = airflow.trigger("canaries_cancel", conf)
    cancelling = place.cancel_when_it_trains(lambda: next(iter(place.runs("canaries_cancel")), None))
    assert airflow.wait("canaries_cancel", run_id) == "failed"
    cancelling.join()


@pytest.mark.parametrize("engine", ["cli", "prefect", "airflow"])
def test_no_secret_is_left_anywhere(engine: str, place: Place, request: pytest.FixtureRequest) -> None:
    searched = [place.folder, Path(place.head.temp_dir), Path(os.environ["RAYTRAIN_HOME"])]
    began = time.time()
    with CommandLines() as commands:
        if engine == "cli":
            by_cli(place)
        elif engine == "prefect":
            by_prefect(place, request.getfixturevalue("prefect_api"))
            searched.append(Path(os.environ["PREFECT_HOME"]))
        else:
            by_airflow(place, request.getfixturevalue("airflow"))
            searched.append(request.getfixturevalue("folder"))
    assert commands.rounds > 100
    assert commands.holding(place.secrets.all) == []
    copied = place.folder / "of_s3"
    if engine != "cli":
        copy_of(place, copied)
    if engine != "cli":
        assert (place.folder / "mlflow.db").exists(), "the tracker has to have been in use"
    assert found_in_temp(began, place.secrets.all) == []
    found = found_under(searched, place.secrets.all)
    assert [line for line in found if Path(line.partition(": ")[0]).name not in ALLOWED] == []
    assert any(Path(line.partition(": ")[0]).name in ALLOWED for line in found), "the search has to find what is there"
    shutil.rmtree(copied, ignore_errors=True)


def copy_of(place: Place, folder: Path) -> None:
    """All objects of the storage."""
    client = boto3.client("s3", endpoint_url=s3_endpoint(place.storage))
    prefix = place.storage.partition("://runs/")[2].partition("?")[0]
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="runs", Prefix=prefix)
    keys = [each["Key"] for page in pages for each in page.get("Contents", [])]
    assert keys
    for number, key in enumerate(keys):
        folder.mkdir(exist_ok=True)
        (folder / f"{number:05}").write_bytes(client.get_object(Bucket="runs", Key=key)["Body"].read())
    assert found_in("\n".join(keys).encode(), place.secrets.all) == []
