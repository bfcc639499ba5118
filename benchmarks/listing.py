"""`raytrain ls` over many runs: `make bench-listing`, or `python -m benchmarks.listing [RUNS]`.

The runs (default: 300) are written to moto, and their objects are then served from memory, with each answer delayed by
20 ms, S3's latency for a small object within a region. moto itself answers only about 300 requests a second, so this
would time the server. Each figure is the median of five calls of the command, including its start.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table

from benchmarks.counting_s3 import ENVIRONMENT, counting_s3
from devtools.servers import s3_endpoint
from devtools.written_runs import write_runs
from plugin_core.storage.location import Location

#: Seconds until an answer: S3's latency for a small object within a region.
LATENCY_S = 0.02
CALLS = 5
#: How many keys a listing returns at once, as in S3.
PAGE = 1000


class MemoryS3:
    """The part of S3 that reading needs, from memory: GET, HEAD and ListObjectsV2 of one bucket."""

    def __init__(self, objects: dict[str, bytes]):
        self.objects = objects
        self.asked = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                line, *headers = request.decode("latin-1").split("\r\n")
                method, target, _ = line.split(" ")
                named = {name.lower(): value.strip() for name, _, value in (header.partition(":") for header in headers)}
                self.asked += 1
                await asyncio.sleep(LATENCY_S)
                writer.write(self._answer(method, target, named.get("range", "")))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, method: str, target: str, span: str) -> bytes:
        parts = urlsplit(target)
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        if not key:
            asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
            return _http("200 OK", self._listing(asked), "GET", {"Content-Type": "application/xml"})
        if key not in self.objects:
            return _http("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>", method, {})
        body = self.objects[key]
        if span:
            first, _, last = span.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(body) - 1), len(body) - 1)
            where = {"Content-Range": f"bytes {begin}-{end}/{len(body)}"}
            return _http("206 Partial Content", body[begin : end + 1], method, where)
        return _http("200 OK", body, method, {})

    def _listing(self, asked: dict[str, str]) -> bytes:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        most, after = int(asked.get("max-keys", PAGE)), asked.get("continuation-token", "")
        keys, folders, last = [], [], ""
        more = False
        for key in sorted(key for key in self.objects if key.startswith(prefix) and key > after):
            head, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if slash and prefix + head + slash in folders:
                last = key
                continue
            if len(keys) + len(folders) == most:
                more = True
                break
            (folders if slash else keys).append(prefix + head + slash if slash else key)
            last = key
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size><ETag>&quot;0&quot;</ETag>"
            "<LastModified>2026-11-23T00:00:00.000Z</LastModified></Contents>"
            for key in keys
        )
        common = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        token = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if more else ""
        found = f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}{common}"
        return f'<?xml version="1.0"?><ListBucketResult><Name>runs</Name>{found}</ListBucketResult>'.encode()


def _http(status: str, body: bytes, method: str, headers: dict[str, str]) -> bytes:
    headers = {"Content-Length": str(len(body)), "ETag": '"0"', "Last-Modified": formatdate(0, usegmt=True), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + (b"" if method == "HEAD" else body)


@contextmanager
def served(objects: dict[str, bytes]) -> Iterator[tuple[int, MemoryS3]]:
    """Yields the port and the server, which runs in a thread of this process; this process does nothing else
    meanwhile."""
    server, loop = MemoryS3(objects), asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.connection, "127.0.0.1", 0, backlog=512))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield listening.sockets[0].getsockname()[1], server
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def written(runs: int) -> dict[str, bytes]:
    """The objects of `runs` runs, most of them over, as in a real storage."""
    import boto3

    with counting_s3() as (uri, _):
        write_runs(Location.of(uri).uri, runs)
        bucket = boto3.resource("s3", endpoint_url=s3_endpoint(uri)).Bucket("runs")
        return {entry.key: entry.get()["Body"].read() for entry in bucket.objects.all()}


def main(runs: int) -> None:
    objects = written(runs)
    environment = {**os.environ, **ENVIRONMENT}
    took, asked, shown = list[float](), 0, list[Any]()
    with served(objects) as (port, server):
        storage = f"s3://runs/prefix?endpoint_override=127.0.0.1:{port}&scheme=http"
        for _ in range(CALLS):
            server.asked = 0
            start = time.monotonic()
            command = [sys.executable, "-m", "plugin_core.cli", "ls", storage, "--json"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            took.append(time.monotonic() - start)
            if done.returncode:
                raise SystemExit(done.stderr)
            asked, shown = server.asked, json.loads(done.stdout)
    if len(shown) != runs:
        raise SystemExit(f"{len(shown)} of {runs} runs were shown")
    table = Table("", "today", "target", title=f"raytrain ls of {runs} runs on S3")
    table.add_row("the command, its start included", f"{statistics.median(took):.1f} s", "≤ 2 s")
    table.add_row("requests a run", f"{asked / runs:.1f}", "≤ 3")
    Console().print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
