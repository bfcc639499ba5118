"""What a cluster hands over to its jobs: where the values go, and where they do not."""

import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from plugin_core import RayCluster, RunConfig, TrainSpec, TuneSpec, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.handover import check
from plugin_core.clusters.kuberay_json import kuberay_from_json
from plugin_core.clusters.secrets import VARIABLE, Secrets
from plugin_core.driver import masking
from plugin_core.errors import EXIT_NOT_HANDED_OVER, SpecError
from plugin_core.runs import code as run_code
from plugin_core.runs.directory import RunDir
from plugin_core.supervisor.decide import Do, Job, Observed, decide
from plugin_core.supervisor.follower import Event
from plugin_core.supervisor.submitter import JOB_VARIABLES
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from plugin_core.tracking.subject import _params
from tests.support.fake_steps import spec_at

SECRETS = {"A": "of the cluster", "WANDB_API_KEY": "hunter2"}
FILES = {"DATABRICKS_CONFIG_FILE": "token = hunter2"}


def code_of(spec: TrainSpec) -> dict[str, str]:
    """What each job gets to check its code."""
    return {run_code.VARIABLE: run_code.digests(RunDir.of(spec))[1]}


class TestFiles:
    PROGRAM = """
import os, stat, subprocess, sys
from plugin_core.clusters import env_files
env_files.install({"DATABRICKS_CONFIG_FILE": "token = hünter2"})
path = os.environ["DATABRICKS_CONFIG_FILE"]
print(path, oct(stat.S_IMODE(os.stat(path).st_mode)), open(path, encoding="utf-8").read(), sep="|", flush=True)
child = "import os, pathlib; print(pathlib.Path(os.environ['DATABRICKS_CONFIG_FILE']).read_text('utf-8'))"
subprocess.run([sys.executable, "-c", child])
sys.stdout.flush()
"""

    def run(self, tmp_path: Path, ending: str, before: str = "") -> list[str]:
        environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONIOENCODING": "utf-8"}
        program = before + self.PROGRAM + ending
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.stdout, done.stderr
        return done.stdout.splitlines()

    @pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
    @pytest.mark.parametrize("ending", ["os._exit(0)", "os.kill(os.getpid(), 9)"])
    def test_handed_over_files_are_not_on_disk_and_child_processes_read_them(self, tmp_path: Path, ending: str) -> None:
        told, childs = self.run(tmp_path, ending)
        path, mode, content = told.split("|")
        assert path.startswith("/proc/")
        assert (mode, content, childs) == ("0o400", "token = hünter2", "token = hünter2")
        assert not os.path.exists(path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("ending", ["", "env_files.remove(); os._exit(0)"])
    def test_without_files_in_memory_they_are_private_and_deleted_with_the_process(
        self, tmp_path: Path, ending: str
    ) -> None:
        told, childs = self.run(tmp_path, ending, before="import os\nvars(os).pop('memfd_create', None)\n")
        path, mode, content = told.split("|")
        assert (Path(path).parent, mode) == (tmp_path, "0o600")
        assert (content, childs) == ("token = hünter2", "token = hünter2")
        assert list(tmp_path.iterdir()) == []


def test_a_job_gets_a_name_and_the_values_travel_separately(tmp_path: Path) -> None:
    spec = spec_at(tmp_path).model_copy(update={"runtime_env": {"env_vars": {"A": "of the spec"}}})
    told: list[Event] = []
    with FakeCluster(env_vars=SECRETS, env_files=FILES) as cluster:
        run(spec, cluster, told.append)
    ((name, data),) = cluster.packages.items()
    (job,) = cluster.jobs
    assert name == f"raytrain-{job}"
    assert cluster.runtime_envs == [{"env_vars": {**JOB_VARIABLES, **code_of(spec), VARIABLE: name, "A": "of the spec"}}]
    handed = Secrets.unpack(data)
    assert (handed.env_vars, handed.env_files) == ({"WANDB_API_KEY": "hunter2"}, FILES)
    assert b"hunter2" not in data[:15], "Ray shows so much of a package that it cannot store"
    assert not any("hunter2" in event.text for event in told)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"hunter2" in path.read_bytes() for path in kept)
    assert "hunter2" not in repr([handed, RayCluster("http://x", env_vars=SECRETS, env_files=FILES)])


def test_a_cluster_without_secrets_hands_nothing_over(tmp_path: Path) -> None:
    with FakeCluster() as cluster:
        run(spec := spec_at(tmp_path), cluster)
    assert (cluster.packages, cluster.runtime_envs) == ({}, [{"env_vars": {**JOB_VARIABLES, **code_of(spec)}}])


def test_each_attempt_gets_them_again(tmp_path: Path) -> None:
    with FakeCluster(plays=["infrastructure", "succeed"], env_vars=SECRETS) as cluster:
        run(spec_at(tmp_path), cluster)
    assert list(cluster.packages) == [f"raytrain-{job}" for job in cluster.jobs]
    assert len(cluster.packages) == 2


def test_a_job_that_waits_long_keeps_its_handed_over_values(tmp_path: Path) -> None:
    class Busy(FakeCluster):
        def _play(self, *args: Any) -> str:
            return "PENDING"

    with Busy(env_vars=SECRETS) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        cluster.packages.clear()  # as Ray does after some minutes
        run_sync(Supervisor(rundir, cluster).submit())
        (job,) = cluster.jobs
    assert list(cluster.packages) == [f"raytrain-{job}"]


def test_a_job_that_found_nothing_handed_over_is_followed_by_the_next_attempt() -> None:
    seen = Observed(attempt=1, ours=True, attempts_of_this_call=1, job=Job.FAILED, job_exit_code=EXIT_NOT_HANDED_OVER)
    assert decide(seen).do is Do.SUBMIT_NEXT


def test_ray_datas_progress_bars_can_be_turned_on(tmp_path: Path) -> None:
    shown = {"RAY_DATA_DISABLE_PROGRESS_BARS": "0"}
    spec = spec_at(tmp_path).model_copy(update={"runtime_env": {"env_vars": shown}})
    with FakeCluster() as cluster:
        run(spec, cluster)
    assert cluster.runtime_envs == [{"env_vars": {**shown, **code_of(spec)}}]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"env_vars": {"A": "hunter2" * 20_000}}, r"env_vars\.A: got 140,003 bytes; expected at most 131,072"),
        ({"env_vars": {"A": "é" * 65_600}}, r"env_vars\.A: got 131,203 bytes"),
        ({"env_vars": {f"A{i}": "hunter2" * 15_000 for i in range(10)}}, r"env_vars: got 1,050,030 bytes in total"),
        ({"env_files": {"F": "hunter2" * 600_000, "G": "hunter2" * 600_000}}, r"env_files: got 8,400,004 bytes in total"),
        ({"env_vars": {"A": 5}}, r"env_vars\.A: got a value of type int; expected text"),
        ({"env_vars": {"A=hunter": "x"}}, r"env_vars: got the name 'A=hunter'"),
        ({"env_vars": {"A": "hunter2\0"}}, r"env_vars\.A: got text with NUL"),
        ({"env_vars": {"A": "hunter2\ud800"}}, r"env_vars\.A: got text with NUL or invalid UTF-8"),
        ({"env_vars": "hunter2"}, r"env_vars: got a value of type str; expected a mapping"),
        ({"env_files": {"A": b"hunter2"}}, r"env_files\.A: got a value of type bytes; expected text"),
        ({"env_vars": {"A": "x"}, "env_files": {"A": "y"}}, r"env_files\.A: is also in env_vars"),
        ({"env_vars": {"LD_PRELOAD": "hunter2"}}, r"env_vars\.LD_PRELOAD: is read before the job's processes get"),
    ],
)
def test_values_that_cannot_be_handed_over_are_refused_by_name_before_anything_is_written(
    tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=sentence) as caught:
        run(spec_at(tmp_path), RayCluster("http://127.0.0.1:9", **given))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert list(tmp_path.iterdir()) == []


def test_files_of_half_a_megabyte_travel_with_the_job() -> None:
    check(RayCluster("http://x", env_files={"A": "é" * 250_000, "B": "x" * 50_000, "C": "x" * 50_000}))


@pytest.mark.parametrize(
    "data",
    [
        {"env_vars": {"A": "hunter2"}},
        {"token": "hunter2"},
        {"run_config": {"headers": {"Authorization": "hunter2"}}},
        {"limits": {"WANDB_API_KEY": "hunter2"}},
        {"limits": [{"env_vars": {"A": "hunter2"}}]},
        {"runtime_env": "A=hunter2"},
        {"runtime_env": {"env_vars": {"A": ["hunter2"]}}},
        {"runtime_env": {"env_vars": ["hunter2"]}},
        {"datasets": "s3://key:hunter2@bucket/rows?secret_key=hunter2"},
        {"datasets": {"train": "s3://key:hunter2@bucket/rows.parquet"}},
    ],
)
def test_the_message_for_a_wrong_spec_shows_no_secret_of_it(data: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        TrainSpec(**{"train_loop_per_worker": "a:b", "framework": "python", **data})
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("given", [{"tokn": "hunter2"}, {"settings": {"image": "x", "env": "hunter2"}}])
def test_an_unknown_field_of_a_kubernetes_cluster_is_reported_without_its_value(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="unknown field") as caught:
        kuberay_from_json({"name": "train", **given}, env_vars={"A": "hunter2"}, headers={"B": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_a_searchs_training_is_a_parameter_but_its_environment_is_not(tmp_path: Path) -> None:
    private = {"env_vars": {"KEY": "hunter2"}}
    train = spec_at(tmp_path, runtime_env=private, train_loop_config={"lr": 0.1})
    run_config = RunConfig(name="search", storage_path=str(tmp_path), worker_runtime_env=private)
    train = train.model_copy(update={"run_config": run_config})
    search = TuneSpec(
        train=train,
        param_space={"train_loop_config": {"lr": {"uniform": [0, 1]}}},
        metric="loss",
        mode="min",
        num_samples=1,
        run_config=run_config,
    )
    params = _params(search)
    assert params["train.train_loop_config.lr"] == 0.1
    assert [name for name in params if "runtime_env" in name or "run_config" in name] == []
    assert "hunter2" not in repr(params)


@pytest.mark.parametrize(
    ("given", "field"), [({"token": "hunter2\n"}, "token"), ({"headers": {"X-Key": "hunter2\r\nX: 1"}}, r"headers\.X-Key")]
)
def test_a_token_or_header_with_a_newline_is_reported_with_its_field(
    tmp_path: Path, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError, match=rf"^{field}: .*expected text without control characters") as caught:
        run(spec_at(tmp_path), RayCluster("http://127.0.0.1:9", **given))
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_the_driver_masks_what_was_handed_over_in_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = Secrets({"KEY": "hunter2", "SHORT": "1"}, {"FILE": "[default]\ntoken = hunter3 \nuser: 'hunter4'\n"})
    monkeypatch.setattr(masking, "_values", secrets.masks)
    try:
        raise ValueError("https://hunter2@host refuses token = hunter3, and hunter4; 1 left")
    except ValueError:
        record = logging.LogRecord("mlflow", logging.ERROR, "a.py", 1, "%s in [default]", ("hunter2",), sys.exc_info())
    line = masking.Masked("%(message)s").format(record)
    assert not any(word in line for word in ("hunter", "token ="))
    assert "1 left" in line
