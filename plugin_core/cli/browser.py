"""Opens a page of the embedded head's dashboard in a browser that is logged in there.

Ray's dashboard knows a browser by a cookie, which it sets for a request with the token in a header; no link makes a browser
send one. So a server on loopback answers one request with that cookie and leads on to the dashboard: cookies count for all
ports of a host. The browser learns its address from a file that only this user can read. Neither the token nor what it can
be got with is in an address that is given to the browser, since other users see its command line.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

#: Seconds for a browser to start and to ask for the page.
PATIENCE_S = 30.0


def open_logged_in(page: str, cookie: str, folder: Path) -> bool:
    """Open a page on 127.0.0.1 in this user's browser, with this cookie (a `Set-Cookie` header); False if no browser asked
    for it. `folder`: one that only this user can read."""
    with (
        _serving(page, cookie) as (door, entered),
        tempfile.NamedTemporaryFile("w", dir=folder, prefix="open-", suffix=".html") as file,
    ):
        file.write(f'<!doctype html><title>raytrain</title><meta http-equiv="refresh" content="0; url={door}">')
        file.flush()
        try:
            opened = webbrowser.open(Path(file.name).as_uri())
        except webbrowser.Error:
            opened = False
        return opened and entered.wait(PATIENCE_S)


@contextmanager
def _serving(page: str, cookie: str) -> Iterator[tuple[str, threading.Event]]:
    """A server with one secret address, which works once: yields it, and whether it was used."""
    path, entered = f"/{secrets.token_urlsafe(32)}".encode(), threading.Event()
    once = threading.Lock()  # two requests may come at the same moment

    class Door(BaseHTTPRequestHandler):
        timeout = PATIENCE_S

        def do_GET(self) -> None:
            if not secrets.compare_digest(self.path.encode(), path) or not once.acquire(blocking=False):
                self.send_error(404)
                return
            self.send_response(303)
            for name, value in (("Set-Cookie", cookie), ("Location", page), ("Cache-Control", "no-store")):
                self.send_header(name, value)
            self.end_headers()
            entered.set()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the secret address is in it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True, name="browser-login").start()
        try:
            yield f"http://127.0.0.1:{server.server_port}{path.decode()}", entered
        finally:
            server.shutdown()
