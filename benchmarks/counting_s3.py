"""An S3 server that counts its requests: moto, on a local port, in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote

#: The path where the server returns the requests since the last such call.
TAKE = "/-/take"
#: What every process that uses the server needs; the server accepts any key.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "counting",
    "AWS_SECRET_ACCESS_KEY": "counting",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
#: Dollars per request in S3 Standard, us-east-1 (https://aws.amazon.com/s3/pricing, November 2026); deletions are free.
PRICES = {"PUT": 0.005 / 1000, "LIST": 0.005 / 1000, "GET": 0.0004 / 1000, "HEAD": 0.0004 / 1000, "DELETE": 0.0}


class Requests:
    """The requests since the last `take`, as (kind, key), in order."""

    def __init__(self, port: int):
        self._port = port

    def take(self) -> list[tuple[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET", TAKE)
        asked = json.loads(connection.getresponse().read())
        connection.close()
        return [(kind, key) for kind, key in asked]


def kinds(asked: list[tuple[str, str]]) -> Counter[str]:
    return Counter(kind for kind, _ in asked)


def price(asked: list[tuple[str, str]]) -> float:
    """The price of the requests, in dollars."""
    return sum(PRICES[kind] for kind, _ in asked)


@contextlib.contextmanager
def counting_s3() -> Iterator[tuple[str, Requests]]:
    """Yields a storage URI in the bucket "runs", and the requests; sets the environment that its clients need."""
    import boto3

    command = [sys.executable, "-m", "benchmarks.counting_s3"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket="runs")
        requests = Requests(port)
        requests.take()
        yield f"s3://runs/prefix?endpoint_override=127.0.0.1:{port}&scheme=http", requests
    finally:
        server.terminate()
        server.wait(timeout=30)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def serve() -> None:
    """Print the port, then serve for ever."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *args: Any, **kwargs: Any) -> None:
            pass

    lock, asked = threading.Lock(), list[tuple[str, str]]()
    backend = DomainDispatcherApplication(create_backend_app)

    def counted(environ: dict[str, Any], start_response: Any) -> Any:
        with lock:
            if environ["PATH_INFO"] == TAKE:
                answer = json.dumps(asked).encode()
                asked.clear()
                start_response("200 OK", [("Content-Length", str(len(answer)))])
                return [answer]
            if not _again(environ):
                asked.append(_request(environ))
        return backend(environ, start_response)

    server = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)
    server.serve_forever()


def _again(environ: dict[str, Any]) -> bool:
    """Whether a client repeats a request, since this server was slow to answer."""
    attempt = re.search(r"attempt=(\d+)", environ.get("HTTP_AMZ_SDK_REQUEST", ""))
    return attempt is not None and int(attempt[1]) > 1


def _request(environ: dict[str, Any]) -> tuple[str, str]:
    """A request's kind, as S3 bills it, and its key."""
    kind, path = environ["REQUEST_METHOD"], unquote(environ["PATH_INFO"])
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    _, _, key = path.strip("/").partition("/")
    if kind == "GET" and (not key or "uploads" in query):
        return "LIST", query.get("prefix", [""])[0]
    if kind == "POST":
        return ("DELETE" if "delete" in query else "PUT"), key  # the others begin or complete an upload in parts
    return kind, key


if __name__ == "__main__":
    serve()
