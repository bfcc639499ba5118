"""Functions and commands as steps on a real Ray head."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Running, wait_until
from plugin_core import FailureConfig, LocalCluster, RayJobSpec, RunConfig, run
from plugin_core.clusters.local_head import Head
from plugin_core.errors import InfrastructureError, SpecError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from tests.support.command_line import raytrain

SCRIPT = """
import os
import ray
from helper import square

ray.init()
print("from", os.path.basename(os.getcwd()), ray.get([ray.remote(square).remote(n) for n in range(4)]))
print("variable", ray.get(ray.remote(lambda: os.environ["MINE"]).remote()), flush=True)
"""
#: Ray takes a moment to bring a line to the driver's log, and does not wait for it at the end.
WAIT = """
import time
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.1)
"""


def logged(running: Running, text: str) -> bool:
    return text in "".join(running.texts("log"))


def job(folder: Path, name: str = "job", **fields: Any) -> RayJobSpec:
    run_config = {"name": name, "storage_path": str(folder / "runs"), **fields.pop("run_config", {})}
    return RayJobSpec(run_config=RunConfig(**run_config), **fields)


def mean_of_squares(numbers: list[int], until: str) -> dict[str, Any]:
    import time

    import numpy as np
    import ray

    @ray.remote
    def square(number: int) -> int:
        return number**2

    squares = ray.get([square.remote(number) for number in numbers])
    rows = ray.data.range(10).map_batches(lambda batch: {"id": batch["id"] * 2}).sum("id")
    print("squared", squares)
    while not os.path.exists(until):
        time.sleep(0.1)
    return {"mean": np.mean(squares), "rows": rows, "squares": np.array(squares)}


def test_a_function_uses_ray_and_returns_json(cluster: LocalCluster, tmp_path: Path) -> None:
    arguments = {"numbers": [1, 2, 3], "until": str(tmp_path / "go")}
    running = Running(job(tmp_path, function=mean_of_squares, arguments=arguments), cluster)
    wait_until(lambda: logged(running, "squared [1, 4, 9]"))
    (tmp_path / "go").touch()
    result = running.result()
    assert result.value == {"mean": pytest.approx(14 / 3), "rows": 90, "squares": [1, 4, 9]}
    assert result.metrics == {"mean": pytest.approx(14 / 3), "rows": 90}
    assert result.output == f"{result.run.uri}/output"
    assert "squared [1, 4, 9]" in raytrain(tmp_path, "logs", result.run.uri).stdout


@pytest.mark.slow
def test_a_function_has_a_process_of_its_own_with_its_resources(cluster: LocalCluster, tmp_path: Path) -> None:
    def where() -> dict[str, Any]:
        import ray

        os.environ["LEFT"] = "behind"
        return {
            "pid": os.getpid(),
            "left": os.environ.get("LEFT_BEFORE"),
            **ray.get_runtime_context().get_assigned_resources(),
        }

    first, second = (run(job(tmp_path, f"job-{n}", function=where, num_cpus=2), cluster).value for n in range(2))
    assert first["pid"] != second["pid"]
    assert first["CPU"] == 2


@pytest.mark.slow
def test_a_large_value_is_on_storage_and_whole(cluster: LocalCluster, tmp_path: Path) -> None:
    result = run(job(tmp_path, function=lambda: list(range(10_000)), task_resources={}), cluster)
    assert (result.value, result.value_uri) == (None, f"{result.run.uri}/.step/value.json")
    assert result.load() == list(range(10_000))
    assert not result.reference().truncated


@pytest.mark.slow
def test_a_users_exception_is_not_tried_again(cluster: LocalCluster, tmp_path: Path) -> None:
    def bad() -> None:
        raise ValueError("the data is bad")

    spec = job(tmp_path, function=bad)
    with pytest.raises(UserCodeError, match="ValueError: the data is bad") as failed:
        run(spec, cluster)
    assert 'raise ValueError("the data is bad")' in failed.value.details
    assert RunDir.of(spec).receipts() == [1]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("def square(number):\n    return number**2\n")
    return folder


@pytest.mark.slow
def test_a_script_finds_the_cluster_its_folder_and_its_variables(
    cluster: LocalCluster, tmp_path: Path, scripts: Path
) -> None:
    (scripts / "script.py").write_text(SCRIPT + WAIT)
    environment = {"working_dir": str(scripts), "env_vars": {"MINE": "seven", "GO": str(tmp_path / "go")}}
    running = Running(job(tmp_path, command="python script.py", runtime_env=environment), cluster)
    wait_until(lambda: logged(running, "variable seven"))
    (tmp_path / "go").touch()
    result = running.result()
    assert (result.value, result.metrics) == (None, {})
    log = raytrain(tmp_path, "logs", result.run.uri).stdout
    assert "[0, 1, 4, 9]" in log
    assert "variable seven" in log


@pytest.mark.slow
def test_secrets_of_the_cluster_reach_a_script_and_its_workers(head: Head, tmp_path: Path, scripts: Path) -> None:
    cluster = LocalCluster(env_vars={"MINE": "a-secret-of-the-cluster"})
    (scripts / "script.py").write_text(SCRIPT + "open(os.environ['OUT'], 'w').write(os.environ['MINE'])\n")
    out = {"OUT": str(tmp_path / "out")}
    run(job(tmp_path, command=["python", "script.py"], runtime_env={"working_dir": str(scripts), "env_vars": out}), cluster)
    assert (tmp_path / "out").read_text() == "a-secret-of-the-cluster"


@pytest.mark.slow
@pytest.mark.parametrize(("line", "error", "sentence", "attempts"), [
    ("echo bad news >&2; exit 3", UserCodeError, "command: it exited with 3; expected 0", [1]),
    ("no-such-program", UserCodeError, "command: it exited with 127", [1]),
    ("exit 75", InfrastructureError, "EX_TEMPFAIL", [1, 2]),
    ("kill -9 $$", InfrastructureError, "the command was killed by SIGKILL", [1, 2]),
])  # fmt: skip
def test_how_a_command_fails_says_whether_it_is_tried_again(
    cluster: LocalCluster, tmp_path: Path, line: str, error: type[Exception], sentence: str, attempts: list[int]
) -> None:
    spec = job(
        tmp_path,
        command=f"echo x >> {tmp_path}/tries; {line}",
        task_resources={},
        limits=Limits(max_attempts=2),
        run_config={"failure_config": FailureConfig(max_failures=1)},
    )
    with pytest.raises(error, match=sentence) as failed:
        run(spec, cluster)
    assert RunDir.of(spec).receipts() == attempts
    tries = (tmp_path / "tries").read_text().count("x")
    assert tries == {"kill -9 $$": 4}.get(line, len(attempts)), "a lost process is started again within the attempt too"
    if "bad news" in line:
        assert "bad news" in failed.value.details


@pytest.mark.slow
def test_a_job_that_can_never_fit_is_refused_before_it_begins(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="num_cpus/num_gpus"):
        run(job(tmp_path, function=mean_of_squares, arguments={"numbers": [], "until": ""}, num_gpus=8), cluster)


@pytest.mark.slow
def test_raytrain_job_runs_a_command_and_returns_what_a_run_returns(head: Head, tmp_path: Path) -> None:
    command = [
        "job",
        "--name",
        "said",
        "--storage",
        str(tmp_path / "runs"),
        "--",
        "sh",
        "-c",
        f"echo $0 $RAY_ADDRESS; until test -e {tmp_path}/go; do sleep 0.1; done",
        "hello",
    ]
    program = str(Path(sys.executable).with_name("raytrain"))
    first = subprocess.Popen([program, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert first.stderr is not None
    said = next((line for line in first.stderr if "hello 127.0.0.1:" in line), None)
    (tmp_path / "go").touch()
    stdout, rest = first.communicate(timeout=600)
    assert (first.returncode, said is not None) == (0, True), rest
    assert "finished: the command exited with 0" in rest
    result = json.loads(stdout)
    assert (result["kind"], result["run"]["name"]) == ("ray_job", "said")
    again = raytrain(tmp_path, *command)
    assert again.stdout == stdout
    failed = raytrain(tmp_path, "job", "--storage", str(tmp_path / "runs"), "--quiet", "--", "false")
    assert failed.returncode != 0
    assert "command: it exited with 1; expected 0" in failed.stderr
    assert failed.stdout == ""
