"""A job's log, however long: each line once, in bounded pieces, from a position that survives its reader."""

import random
from typing import Any

import pytest
from aiohttp import web

from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.jobs_api import JobInfo
from plugin_core.errors import ClusterUnreachableError
from plugin_core.errors.plain_text import Text
from plugin_core.supervisor import job_log
from plugin_core.supervisor.job_log import PIECE_CHARS, PIECE_LINES, JobLog, pieces
from plugin_core.supervisor.supervisor import run_sync

JOB = JobInfo("job", "RUNNING", node_id="node")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test reaches soon."""
    for name, value in {
        "SHOWN": 20_000,
        "SHORT": 2_000,
        "ANCHOR": 200,
        "WINDOW": 800,
        "LINES": 20,
        "PAUSE": 0.0,
        "LOOK_S": 600.0,
    }.items():
        monkeypatch.setattr(job_log, name, value)


@pytest.fixture
def cluster() -> Any:
    with Counting() as cluster:
        yield cluster


class Counting(FakeCluster):
    """Counts how much of its logs it sends; `cuts` are the places at which it cuts an answer off."""

    def __enter__(self) -> "Counting":
        self.sent: list[int] = []
        self.cuts: list[int] = []
        self.log = ""
        super().__enter__()
        return self

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        body = (await super()._logs(request)).text or ""
        self.sent.append(len(body))
        response = web.StreamResponse()
        await response.prepare(request)
        if self.cuts:
            await response.write(body[: self.cuts.pop(0)].encode())
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(body.encode())
        await response.write_eof()
        return response


def read(cluster: FakeCluster, log: JobLog, final: bool = False) -> str:
    async def all_of_it() -> str:
        async with await cluster.connect() as client:
            return "".join([piece async for piece in log.read(client, JOB, final)])

    return run_sync(all_of_it())


def lines(count: int, first: int = 0) -> str:
    return "".join(f"step {number} loss {1 / (number + 1):.6f}\n" for number in range(first, first + count))


def test_a_growing_log_is_reported_line_by_line_and_a_long_one_is_read_from_its_end(cluster: Counting) -> None:
    log, told = JobLog("job"), ""
    for number in range(0, 1000, 10):
        cluster.log += lines(10, number)
        told += read(cluster, log)
    assert told == cluster.log
    assert log.position == len(cluster.log) > 10 * job_log.SHORT
    assert max(cluster.sent[-50:]) < 2 * job_log.SHORT


def test_a_gap_beyond_the_last_lines_is_found_by_asking_for_more(cluster: Counting) -> None:
    log = JobLog("job")
    cluster.log = lines(200)
    told = read(cluster, log)
    for _ in range(3):
        cluster.log += lines(300, len(told))
        told += read(cluster, log)
    assert told == cluster.log


@pytest.mark.parametrize("line", [".\n", "\n", "the same line\n"])
def test_a_log_of_equal_lines_loses_and_repeats_no_line(cluster: Counting, line: str) -> None:
    log, told = JobLog("job"), ""
    for _ in range(30):
        cluster.log += line * 300
        told += read(cluster, log)
    assert told == cluster.log


def test_blocks_that_are_repeated_are_reported_again(cluster: Counting) -> None:
    """Longer than the text that marks the position."""
    block = lines(20)
    log, told = JobLog("job"), ""
    for number in range(60):
        cluster.log += block * (1 + number % 3)
        told += read(cluster, log)
    assert told == cluster.log


def test_lines_mistaken_for_earlier_ones_are_reported_as_missing(cluster: Counting) -> None:
    """Nobody can tell, from the last lines, a text from its exact repetition: the whole log, at the end, can."""
    log = JobLog("job")
    cluster.log = lines(300)
    read(cluster, log)
    cluster.log += lines(100, 1000) + cluster.log[-400:]
    assert read(cluster, log) == ""
    cluster.log += lines(1, 5000)
    assert read(cluster, log) == lines(1, 5000)
    last = read(cluster, log, final=True)
    assert last.startswith("… a part of the log not shown; `ray job logs job` has all\n")
    assert last.endswith(lines(1, 5000))


def test_a_log_that_is_too_long_shows_its_beginning_and_end_and_continues_from_there(cluster: Counting) -> None:
    log = JobLog("job")
    cluster.log = lines(20_000)
    told = read(cluster, log)
    assert len(told) < job_log.SHOWN + 200
    head, note, tail = told.partition("… 0.5 MB of the log not shown; `ray job logs job` has all\n")
    assert note
    assert cluster.log.startswith(head)
    assert cluster.log.endswith(tail)
    assert min(len(head), len(tail)) > job_log.SHOWN / 4
    assert log.position == len(cluster.log)
    cluster.log += lines(5, 20_000)
    assert read(cluster, log) == lines(5, 20_000)


def test_a_reader_continues_from_the_position_of_another(cluster: Counting) -> None:
    first, told = JobLog("job"), ""
    cluster.log = lines(500)
    told += read(cluster, first)
    for number in range(500, 600, 20):
        cluster.log += lines(20, number)
        told += read(cluster, JobLog("job", len(told)))
    assert told == cluster.log


@pytest.mark.parametrize("seed", range(5))
def test_a_connection_that_breaks_anywhere_loses_and_repeats_nothing(cluster: Counting, seed: int) -> None:
    randomly = random.Random(seed)
    log, told = JobLog("job"), ""
    for number in range(0, 400, 40):
        cluster.log += lines(40, number)
        cluster.cuts = [randomly.randrange(len(cluster.log)) for _ in range(randomly.randrange(3))]
        while cluster.cuts:
            told += broken(cluster, log)
        told += read(cluster, log)
    assert told == cluster.log


def broken(cluster: FakeCluster, log: JobLog) -> str:
    got: list[str] = []

    async def read() -> None:
        async with await cluster.connect() as client:
            async for piece in log.read(client, JOB, final=False):
                got.append(piece)

    try:
        run_sync(read())
    except ClusterUnreachableError:
        pass
    return "".join(got)


def test_the_last_line_counts_without_its_end_when_the_job_is_over(cluster: Counting) -> None:
    cluster.log = "one\ntwo"
    log = JobLog("job")
    assert read(cluster, log) == "one\n"
    assert read(cluster, log, final=True) == "two"


def test_a_log_that_there_is_no_time_to_read_is_shown_as_far_as_it_got_and_with_its_end(
    cluster: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "FINAL_S", 0.0)
    cluster.log = lines(5000)
    log = JobLog("job")
    told = read(cluster, log, final=True)
    assert told.startswith("… a part of the log not shown; `ray job logs job` has all\n")
    assert told.endswith(lines(10, 4990))
    assert read(cluster, log, final=True) == ""


def test_a_look_leaves_the_rest_to_the_next_look(cluster: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(job_log.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(job_log, "LOOK_S", 4)
    monkeypatch.setattr(job_log, "SHOWN", 10**7)
    cluster.log = lines(50_000)
    log = JobLog("job")

    async def looks() -> list[str]:
        told = []
        async with await cluster.connect() as client:
            while log.position < len(cluster.log):
                told.append("".join([piece async for piece in log.read(client, JOB, final=False)]))
        return told

    told = run_sync(looks())
    assert "".join(told) == cluster.log
    assert len(told) > 3
    assert cluster.sent == [len(cluster.log)], "one stream served them all"


def test_one_piece_of_a_log_is_small_whatever_the_lines() -> None:
    for text in (lines(1000), "\n" * 5000, "x" * 10**6, "x" * 10**5 + "\n" + lines(300) + "end"):
        parts = list(pieces(text))
        assert "".join(parts) == text
        assert max(map(len, parts)) <= PIECE_CHARS
        assert max(part.count("\n") for part in parts) <= PIECE_LINES
    assert list(pieces("a\nb\nc")) == ["a\nb\nc"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_bytes_become_text_however_they_are_cut(size: int) -> None:
    data = "plain \x1b[31mred\x1b[0m, größer €\r\nnext\rover\x1b[?25l\n".encode() + b"\xff\xfe broken\n" + b"\x1b[3"
    text = Text()
    told = "".join(text.feed(data[at : at + size]) for at in range(0, len(data), size)) + text.feed(b"")
    assert told == "plain red, größer €\nnext\nover\n\ufffd\ufffd broken\n\x1b[3"
