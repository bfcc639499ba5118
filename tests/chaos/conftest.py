from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.chaos import Proxy

ROOT = Path(__file__).parents[2]


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    """Puts a proxy in front of an address (`http://host:port`)."""
    proxies: list[Proxy] = []

    def start(address: str) -> Proxy:
        host, _, port = address.rpartition("//")[2].partition(":")
        proxies.append(Proxy(host, int(port)))
        return proxies[-1]

    yield start
    for each in proxies:
        each.close()
