"""Whether the kernel killed a process because memory ran out. A plain SIGKILL looks the same to everybody else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

#: Where the kernel counts its kills, by control group: version 2, then version 1 (man cgroups(7)).
_COUNTERS = (
    (re.compile(r"^0::(?P<path>/.*)$", re.MULTILINE), "sys/fs/cgroup", "memory.events"),
    (
        re.compile(r"^\d+:(?:\w+,)*memory(?:,\w+)*:(?P<path>/.*)$", re.MULTILINE),
        "sys/fs/cgroup/memory",
        "memory.oom_control",
    ),
)
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def kills(root: Path = Path("/")) -> int | None:
    """How many processes in this process's control group the kernel has killed for lack of memory; the number for the
    whole machine if the group does not say. None if neither is known."""
    try:
        groups = (root / "proc/self/cgroup").read_text()
    except OSError:
        groups = ""
    for pattern, mount, name in _COUNTERS:
        if (group := pattern.search(groups)) is None:
            continue
        # in a container, the path may be the one outside it
        for folder in (root / mount / group["path"].lstrip("/"), root / mount):
            if (found := _counted(folder / name)) is not None:
                return found
    return _counted(root / "proc/vmstat")


def _counted(file: Path) -> int | None:
    try:
        found = _KILLS.search(file.read_text())
    except OSError:
        return None
    return int(found[1]) if found else None


class OomWatch:
    """Compares each node's number of kills with the one at the start. `ask` returns a node's number now, or None."""

    def __init__(self, ask: Callable[[str], int | None]):
        self._ask = ask
        self._before: dict[str, int] = {}

    def begin(self, node: str, counted: int | None) -> None:
        """Note a node's number when a worker starts there; the first one counts until `killed_on` is asked."""
        if counted is not None:
            self._before.setdefault(node, counted)

    def killed_on(self, node: str) -> bool | None:
        """Whether the kernel has killed a process there for lack of memory since then; None if unknown."""
        before = self._before.get(node)
        now = self._ask(node) if before is not None else None
        if before is None or now is None:
            return None
        self._before[node] = now
        return now > before
