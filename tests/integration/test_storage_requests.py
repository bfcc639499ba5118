"""How many requests S3 gets, by a server that counts them."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.counting_s3 import Requests, counting_s3
from benchmarks.storage import a_checkpoint
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.storage.location import Location


@pytest.fixture(scope="module")
def counted() -> Iterator[tuple[str, Requests]]:
    with counting_s3() as found:
        yield found


@pytest.fixture
def root(counted: tuple[str, Requests], request: pytest.FixtureRequest) -> Location:
    return Location.of(counted[0]).child(request.node.name[:60])


@pytest.fixture
def asked(counted: tuple[str, Requests]) -> Callable[[Callable[[], Any]], list[str]]:
    """The kinds of requests that a call makes."""

    def count(call: Callable[[], Any]) -> list[str]:
        counted[1].take()
        call()
        return [kind for kind, _ in counted[1].take()]

    return count


Asked = Callable[[Callable[[], Any]], list[str]]


def test_a_small_file_is_written_read_looked_up_and_deleted_by_one_request_each(root: Location, asked: Asked) -> None:
    place = root.child("file.json")
    assert asked(place.read) == ["GET"], "absent"
    assert asked(lambda: place.write(b"1")) == ["PUT"]
    assert asked(place.read) == ["GET"]
    assert asked(lambda: place.read_since(place.read_since("")[1])) == ["GET", "GET"]
    assert asked(place.is_file) == ["HEAD"]
    assert asked(root.versions) == ["LIST"]
    assert asked(lambda: root.child("new").create(b"1")) == ["PUT"]
    assert asked(place.delete) == ["DELETE"]
    assert asked(root.delete_dir) == ["LIST", "DELETE"]


def test_a_small_streamed_file_is_one_request_so_a_kill_leaves_nothing_of_it(root: Location, asked: Asked) -> None:
    def write() -> None:
        with root.fs.open_output_stream(root.child("streamed").path) as stream:
            stream.write(b"x" * 100_000)

    assert asked(write) == ["PUT"]
    assert asked(root.make_dir) == []


def test_a_look_at_the_fence_is_one_request(root: Location, asked: Asked) -> None:
    fence = Fence(root.child("run").uri, 1)
    assert asked(fence.check) == ["HEAD"]


def test_the_leftovers_of_a_killed_upload_are_aborted(root: Location) -> None:
    upload = f"""
        import os, signal, time
        from plugin_core.storage.location import Location
        place = Location.of({root.uri!r}).child("run", "big")
        stream = place.fs.open_output_stream(place.path)
        for _ in range(4):
            stream.write(b"x" * (10 << 20))
        time.sleep(1)  # its parts go out in the background
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = subprocess.run([sys.executable, "-c", textwrap.dedent(upload)], check=False)
    assert process.returncode == -9
    assert root.child("another run").abort_uploads() == 0
    assert root.child("run").abort_uploads() == 1
    assert root.child("run").abort_uploads() == 0
    assert root.child("run", "big").read() is None


@pytest.mark.slow
def test_a_checkpoint_of_one_file_and_one_rank_takes_eight_requests(root: Location, counted: tuple[str, Requests]) -> None:
    """As Ray Train's worker and controller make it (ray 2.60), with the journal's entry; deleting an old one takes five."""
    rundir = RunDir.at(root.child("run").uri)
    rundir.claim(1, "address", "incarnation")
    steps = a_checkpoint(rundir)
    next(steps)
    counted[1].take()
    next(steps)
    asked = [kind for kind, _ in counted[1].take()]
    assert sorted(asked) == ["HEAD"] * 4 + ["PUT"] * 4
    next(steps)
    assert sorted(kind for kind, _ in counted[1].take()) == ["DELETE", "HEAD", "LIST", "LIST", "LIST"]
    assert not [key for _, key in counted[1].take() if key.endswith("/")], "no folder is marked"
