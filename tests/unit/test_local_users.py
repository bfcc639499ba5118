"""What two users of one machine can do to each other: the other one is real, by its user id."""

import json
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plugin_core import run
from plugin_core.clusters import local_head
from plugin_core.clusters.fake import FakeCluster
from plugin_core.driver import attempt
from plugin_core.errors import InfrastructureError, SpecError
from plugin_core.runs import code as run_code
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits, TrainSpec
from plugin_core.storage import ownership
from plugin_core.supervisor.supervisor import Supervisor, run_sync
from plugin_core.tracking.mlflow import MLflowBackend
from tests.support.fake_steps import spec_at

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a second user")


def as_user(uid: int, do: Callable[[], Any]) -> Any:
    """What `do` returns, or the exception that it raises, in a child process of that user."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            found: Any = do()
        except Exception as exc:
            found = exc
        os.write(writing, pickle.dumps(found))
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as stream:
        return pickle.loads(stream.read())


def by_nobody(command: str, *words: Any) -> None:
    subprocess.run(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sh", "-ec", command, "sh",
                    *map(str, words)], check=True)  # fmt: skip


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users may write in, as /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def step(shared: Path, **fields: Any) -> TrainSpec:
    def loop(config: dict[str, Any]) -> None:
        print("mine")

    return spec_at(shared, train_loop_per_worker=loop, **fields)


def test_a_run_directory_that_another_user_made_is_not_adopted(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_nobody("mkdir -p $1/run/.step/attempts; chmod -R 777 $1/run", shared)
    with FakeCluster() as cluster:
        with pytest.raises(SpecError, match=r"got '.*/run', which belongs to nobody; expected a run directory of your own"):
            run(step(shared), cluster)
        assert not list(shared.glob("run/.step/*.*"))
        for trusted in ("nobody", f"1, {NOBODY}", "*"):
            monkeypatch.setenv("RAYTRAIN_TRUSTED_OWNERS", trusted)
            assert run(step(shared), cluster).run.attempt == 1


def test_code_that_another_user_put_into_a_run_is_not_submitted(shared: Path) -> None:
    rundir = RunDir.of(step(shared))
    rundir.write_spec(step(shared))
    Path(rundir.step.path).chmod(0o777)
    by_nobody("echo evil > $1/new; mv -f $1/new $1/payload.pkl", rundir.step.path)
    with FakeCluster() as cluster, pytest.raises(SpecError, match=r"payload\.pkl', which belongs to nobody"):
        run_sync(Supervisor(rundir, cluster).run())
    assert cluster.submits == 0


def test_a_storage_that_maps_all_files_to_one_user_needs_no_setting(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS does with root's files. The test fakes the owner of the file we write, as it cannot create such a mount."""
    by_nobody("mkdir -p $1/run/.step", shared)
    with pytest.raises(SpecError, match="belongs to nobody"):
        ownership.check_run(str(shared / "run"), [".step"])
    monkeypatch.setattr(ownership, "_owner_of_ours", lambda folder: {NOBODY})
    ownership.check_run(str(shared / "run"), [".step"])


def attempt_of(shared: Path) -> tuple[RunDir, str]:
    spec = step(shared, limits=Limits(heartbeat_ttl_s=5))
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    rundir.claim(1, "http://x", "s")
    return rundir, run_code.digests(rundir)[0]


@pytest.mark.parametrize("file", ["payload.pkl", "spec.json"])
def test_code_replaced_after_the_submit_does_not_run(shared: Path, tmp_path: Path, file: str) -> None:
    rundir, code = attempt_of(shared)
    swapped = Path(rundir.step.path, file)
    if file == "payload.pkl":
        swapped.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    else:
        record = json.loads(swapped.read_text())
        record["spec"]["train_loop_per_worker"] = "os:abort"
        swapped.write_text(json.dumps(record))
    with pytest.raises(InfrastructureError, match="has changed since this job was submitted"):
        attempt.run_attempt(rundir, 1, lambda _: None, lambda *_: None, code=code)
    end = rundir.end(1)
    assert end is not None
    assert end.outcome == "infrastructure"
    assert list(tmp_path.iterdir()) == []


def test_the_compared_code_is_the_code_that_runs(shared: Path) -> None:
    rundir, code = attempt_of(shared)
    _, lasting = run_code.digests(rundir)
    run_code.hold(rundir, code)
    for name in ("spec.json", "payload.pkl"):
        Path(rundir.step.path, name).write_bytes(b"evil")
    assert rundir.read_payload()["train_loop_per_worker"].__name__ == "loop"
    assert rundir.read_spec().limits.heartbeat_ttl_s == 5
    assert run_code.of_held(rundir) == lasting


def test_a_call_with_other_limits_leaves_a_job_that_is_about_to_begin_its_code(shared: Path) -> None:
    rundir, code = attempt_of(shared)
    pickled = Path(rundir.step.path, "payload.pkl").read_bytes()
    again = step(shared, limits=Limits(heartbeat_ttl_s=7, max_attempts=9), tracking="tensorboard")
    RunDir.of(again).write_spec(again)
    assert rundir.read_spec().limits.max_attempts == 9
    assert Path(rundir.step.path, "payload.pkl").read_bytes() == pickled
    run_code.hold(rundir, code)


def test_an_older_orchestrators_job_runs_without_a_digest(shared: Path) -> None:
    rundir, _ = attempt_of(shared)
    run_code.hold(rundir, "")
    assert isinstance(rundir.read_spec(), TrainSpec)


def test_two_users_who_share_a_home_have_a_head_each(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(shared))
    folders = [as_user(uid, lambda: (str(local_head.state_dir()), local_head.current())) for uid in (60001, 60002)]
    assert len({folder for folder, _ in folders}) == 2, folders


def test_a_heads_folder_of_another_user_is_not_taken(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(shared))
    name = local_head.state_dir().name
    local_head.state_dir().rmdir()
    by_nobody("mkdir -m 777 $1/$2; echo '{}' > $1/$2/state.json", shared, name)
    for use in (local_head.current, local_head.ensure, local_head.stop):
        with pytest.raises(SpecError, match=r"RAYTRAIN_HOME: got '.*', which belongs to nobody; expected a folder of your"):
            use()
    by_nobody("rm -r $1/$2; mkdir -m 700 $1/other; ln -s $1/other $1/$2", shared, name)
    with pytest.raises(SpecError, match="which belongs to nobody"):
        local_head.state_dir()


def test_a_heads_folder_that_others_may_write_in_is_not_taken(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(shared))
    local_head.state_dir().chmod(0o770)
    with pytest.raises(SpecError, match=r"which other users can write to; expected a private folder \(chmod 700\)"):
        local_head.state_dir()


def test_a_heads_state_of_another_user_is_not_read(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(shared))
    folder = local_head.state_dir()
    folder.chmod(0o777)
    by_nobody("echo '{}' > $1/state.json", folder)
    folder.chmod(0o700)
    for use in (local_head.current, local_head.stop):
        with pytest.raises(SpecError, match=r"state\.json', which belongs to nobody"):
            use()


def test_only_our_own_temporary_folder_is_removed(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(shared))
    folder = local_head.state_dir()
    ours = Path(tempfile.mkdtemp(prefix="rtw-", dir="/tmp"))
    kept = [shared / "work", shared / "rtw-1", Path(f"/tmp/rtw-link-{os.getpid()}")]
    for place in kept[:2]:
        place.mkdir()
    kept[2].symlink_to(kept[0])
    by_nobody("mkdir $1", theirs := Path(f"/tmp/rtw-theirs-{os.getpid()}"))
    try:
        for place in [*kept, theirs, Path(f"/tmp/rtw-x/../{shared.name}/work"), ours]:
            left = {"mark": "none", "keeper_pid": 2**22 + 1, "temp_dir": str(place)}
            (folder / "starting.json").write_text(json.dumps(left))
            local_head._clear_stale(folder)
        assert all(os.path.lexists(place) for place in [*kept, theirs])
        assert not ours.exists()
    finally:
        kept[2].unlink()
        theirs.rmdir()


def test_each_user_has_a_folder_of_its_own_for_the_other_ranks_of_mlflow() -> None:
    def write() -> str:
        folder = Path(MLflowBackend.other_workers_environment(None)["MLFLOW_TRACKING_URI"].removeprefix("file://"))  # type: ignore[arg-type]
        folder.mkdir(exist_ok=True)
        (folder / "x").write_text("x")
        return str(folder)

    made = [as_user(uid, write) for uid in (60001, 60002)]
    assert len(set(made)) == 2, made
    for folder in made:
        shutil.rmtree(folder)
