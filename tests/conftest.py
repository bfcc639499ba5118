"""Shared fixtures: small real servers, each on a free port and stopped wholly."""

import http.server
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def other_server() -> Iterator[str]:
    """A web server that is no Ray dashboard: it answers every GET with a small page."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()
