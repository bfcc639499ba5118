"""Storages that hang: which calls wait and which do not."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.storage import threads as sync
from plugin_core.storage.location import Location
from plugin_core.storage.threads import Threads
from plugin_core.supervisor.supervisor import Event, Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at


class Hanging:
    """Files that hang any process that opens them, like those of an NFS server that is gone."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._answers = threading.Event()
        #: counts the calls that opened one, and so have to wait
        self.hung = threading.Semaphore(0)

    def put(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._files.add(str(path))
        return path

    def release(self) -> None:
        """The files are deleted, and whoever waited for one finds none."""
        for file in self._files:
            os.unlink(file)
        self._files = set()
        self._answers.set()

    def open(self, file: Any, *arguments: Any, **keywords: Any) -> int:
        if str(file) in self._files:
            self.hung.release()
            self._answers.wait()
        return os_open(file, *arguments, **keywords)


os_open = os.open


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    files = Hanging()
    monkeypatch.setattr(os, "open", files.open)
    yield files
    files.release()


@pytest.mark.parametrize("calls", [64, 200])
def test_a_storage_that_hangs_holds_up_no_other_storage(tmp_path: Path, hanging: Hanging, calls: int) -> None:
    gone, there = tmp_path / "nfs/run", tmp_path / "disk/run"
    hung = Location(str(hanging.put(gone / "file")))
    Location(str(there / "file")).write(b"here")

    async def both() -> bytes | None:
        threads = Threads.of(str(gone))
        waiting = [asyncio.create_task(threads(hung.read)) for _ in range(calls)]
        await asyncio.sleep(0)
        answer = await Threads.of(str(there))(Location(str(there / "file")).read)
        for _ in range(64):
            assert await asyncio.to_thread(hanging.hung.acquire, timeout=30)
        assert not any(task.done() for task in waiting)
        hanging.release()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert ended == [None] * calls, "nobody is left waiting"
        assert not hanging.hung.acquire(blocking=False), "the others waited for a thread"
        return answer

    assert asyncio.run(both()) == b"here"


def test_runs_of_one_bucket_or_folder_share_their_threads(tmp_path: Path) -> None:
    one = Threads.of("s3://bucket/team/run")
    assert one is Threads.of("s3://bucket/other/run2")
    assert one is not Threads.of("s3://second/team/run")
    assert Threads.of(str(tmp_path / "a")) is not one


def test_a_run_whose_storage_hangs_says_so_and_continues_when_it_answers(
    tmp_path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "HUNG_S", 0.2)
    said: list[str] = []
    goes_on = asyncio.Event()

    def listen(event: Event) -> None:
        said.append(event.text)
        if "hangs" in event.text:
            hanging.release()
        if event.text == "the job is running":
            goes_on.set()

    with FakeCluster(plays=["hang"]) as cluster:
        rundir: RunDir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        # a heart that does not beat is looked for where earlier versions kept it
        Path(rundir.uri, ".step/attempts/001.beat.json").unlink()
        hanging.put(Path(rundir.uri, ".step/heartbeat/001.json"))

        async def until_it_goes_on() -> None:
            supervisor = Supervisor(rundir, cluster, since_attempt=0, listener=listen)
            running = asyncio.create_task(supervisor.run())
            await goes_on.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        asyncio.run(asyncio.wait_for(until_it_goes_on(), 30))
    assert said[0] == f"waiting: {tmp_path} hangs: a call did not return within 0 s"


def test_a_call_without_an_answer_is_abandoned_with_a_storage_error(tmp_path: Path, hanging: Hanging) -> None:
    file = Location(str(hanging.put(tmp_path / "nfs/run/file")))
    threads = Threads.of(str(tmp_path / "nfs/run"))
    with pytest.raises(StorageError, match="nfs hangs: a call did not return within 0 s"):
        asyncio.run(threads(file.read, limit_s=0.1))
