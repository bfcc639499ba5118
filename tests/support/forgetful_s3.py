"""An S3 server that ignores `If-None-Match`, as some do: a proxy that strips the header in front of another server."""

import contextlib
import http.client
import http.server
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

from devtools.servers import s3_endpoint


@contextlib.contextmanager
def in_front_of(uri: str, *, strip: bool = True) -> Iterator[tuple[str, list[str]]]:
    """Yields a storage URI through the proxy, and the requests that were made, as "PUT /bucket/key". Without `strip`,
    it only counts."""
    endpoint = urlsplit(s3_endpoint(uri)).netloc
    requests: list[str] = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            requests.append(f"{self.command} {self.path.partition('?')[0]}")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            kept = {name: value for name, value in self.headers.items() if not (strip and name.lower() == "if-none-match")}
            upstream = http.client.HTTPConnection(endpoint)
            upstream.request(self.command, self.path, body, kept)
            answer = upstream.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date"):
                    self.send_header(name, value)
            # for a HEAD request, it is the object's
            self.send_header("Content-Length", answer.getheader("Content-Length") or str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield uri.replace(endpoint, f"127.0.0.1:{server.server_address[1]}"), requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
