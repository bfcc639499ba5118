"""A step's `runtime_env`: errors in it show only names, and come before an attempt begins."""

import asyncio
import random
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from plugin_core import run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.specs.working_folders import check_folders
from plugin_core.supervisor import preparation, submitter, uploads
from plugin_core.supervisor.events import Event, Line
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at

SECRETS = {"WANDB_API_KEY": "hunter2"}


def test_a_missing_working_dir_names_the_field_and_the_corrected_spec_runs_under_the_same_name(
    tmp_path: Path,
) -> None:
    private = {"env_vars": {"PRIVATE": "hunter2"}}
    with FakeCluster(env_vars=SECRETS, env_files={"FILE": "hunter2"}) as cluster:
        typo = spec_at(tmp_path, runtime_env={"working_dir": str(tmp_path / "codee"), **private})
        with pytest.raises(SpecError, match=r"runtime_env.working_dir: got '.*codee', which does not exist") as caught:
            run(typo, cluster)
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))
        assert RunDir.at(str(tmp_path / "run")).receipts() == []
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "module.py").write_text("")
        result = run(spec_at(tmp_path, runtime_env={"working_dir": str(tmp_path / "code"), **private}), cluster)
    assert result.run.attempt == 1
    (name,) = [name for name in cluster.packages if name.startswith("_ray_pkg_")]
    assert cluster.runtime_envs[0]["working_dir"] == f"gcs://{name}"


async def _later(upload: Coroutine[Any, Any, Any]) -> Any:
    await asyncio.sleep(0.05)
    return await upload


@pytest.mark.parametrize("slow", [True, False])
def test_an_upload_that_takes_a_while_is_told_with_its_size_and_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr(uploads, "TOLD_AFTER_S", 0.0 if slow else 60.0)
    for module in (submitter, preparation):
        monkeypatch.setattr(module, "tell_if_slow", lambda upload, *more: uploads.tell_if_slow(_later(upload), *more))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/data").write_bytes(random.Random(1).randbytes(1_160_000))
    lines: list[Line] = []

    async def submitted(cluster: FakeCluster) -> None:
        spec = spec_at(tmp_path / "runs", runtime_env={"working_dir": str(tmp_path / "code")})
        await Supervisor(await prepare(spec, cluster, log=lines.append), cluster, log=lines.append).submit()

    with FakeCluster() as cluster:
        run_sync(submitted(cluster))
    said = [line.text for line in lines if line.text.startswith("upload")]
    told = ["uploading the step to its run directory", "uploaded the step to its run directory in 0 s"]
    told += ["uploading the code to the cluster", "uploaded the code to the cluster, 1.2 MB, in 0 s"]
    assert said == (told if slow else [])


@pytest.mark.parametrize(
    ("runtime_env", "sentence"),
    [
        ({"working_dir": "/nowhere"}, "runtime_env.working_dir: got '/nowhere', which does not exist"),
        ({"working_dir": __file__}, "runtime_env.working_dir: got '.*py', which does not exist; expected a folder, a file"),
        ({"py_modules": ["s3://b/a.zip", "/nowhere.whl"]}, "runtime_env.py_modules: got '/nowhere.whl'"),
    ],
)
def test_a_missing_folder_is_reported_with_its_field(runtime_env: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        check_folders({**runtime_env, "env_vars": {"A": "x"}})


def test_existing_folders_and_uris_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_text("")
    check_folders({"working_dir": str(tmp_path), "py_modules": [str(tmp_path / "a.whl"), "s3://b/a.zip"], "pip": ["a"]})


def test_a_spec_that_the_cluster_refuses_leaves_the_name_free_for_the_corrected_one(tmp_path: Path) -> None:
    class Refusing(FakeCluster):
        async def _submit(self, request: web.Request) -> web.Response:
            if "bad" in (await request.json())["runtime_env"]:
                return web.Response(status=400, text="TypeError: unknown field")
            return await super()._submit(request)

    with Refusing() as cluster:
        with pytest.raises(SpecError, match="the cluster rejects the job"):
            run(spec_at(tmp_path, runtime_env={"bad": 1}), cluster)
        result = run(spec_at(tmp_path), cluster)
    assert (result.run.attempt, len(cluster.jobs)) == (2, 1)


@pytest.mark.parametrize("status", [503, None])
def test_a_cluster_that_accepts_no_upload_for_a_while_is_waited_for(tmp_path: Path, status: int | None) -> None:
    """None: the connection is cut."""
    refusals = 2

    class Slow(FakeCluster):
        async def _get_package(self, request: web.Request) -> web.Response:
            nonlocal refusals
            if refusals:
                refusals -= 1
                if status is None:
                    assert request.transport is not None
                    request.transport.close()
                    await asyncio.sleep(0)
                return web.Response(status=status or 503, text="busy")
            return await super()._get_package(request)

    (tmp_path / "code").mkdir()
    told: list[Event] = []
    with Slow() as cluster:
        result = run(spec_at(tmp_path, runtime_env={"working_dir": str(tmp_path / "code")}), cluster, told.append)
    assert result.run.attempt == 1
    assert sum("attempt 1 is waiting for its upload" in event.text for event in told) == 2
