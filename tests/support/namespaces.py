"""Other hosts, containers and clocks on this machine: Linux namespaces around real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

#: What `unshare` creates for a container; `--kill-child`: it dies with the process that was started for it.
CONTAINER = ("--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")

needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux" or subprocess.run(["unshare", *CONTAINER, "true"], capture_output=True).returncode != 0,
    reason="needs root, and a kernel that makes namespaces",
)


def on_host(name: str, command: list[str], kinds: tuple[str, ...] = ("--uts",)) -> list[str]:
    """The command that runs `command` on a host called `name`."""
    return ["unshare", *kinds, "sh", "-c", f'hostname {name} && exec "$@"', "sh", *command]


def with_clock_set_by(seconds: int, folder: Path, command: list[str]) -> list[str]:
    """The command that runs `command` where the kernel reports a boot `seconds` later, as it does when the clock was
    set in the meantime."""
    lines = Path("/proc/stat").read_text().splitlines()
    (boot,) = [line for line in lines if line.startswith("btime ")]
    stepped = [f"btime {int(boot.split()[1]) + seconds}" if line == boot else line for line in lines]
    file = folder / f"stat{seconds}"
    file.write_text("\n".join(stepped) + "\n")
    return ["unshare", "--mount", "sh", "-c", f'mount --bind {file} /proc/stat && exec "$@"', "sh", *command]
