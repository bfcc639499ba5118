"""What runs in the step's own process."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from plugin_core.errors import UserCodeError
from plugin_core.loops import step
from plugin_core.runs.saved_state import Start
from plugin_core.specs.results import VALUE_BYTES

#: Lines of a command's output that a message about its failure shows, and the most bytes of a line read at once.
TAIL_LINES, LINE_BYTES = 30, 1 << 16
#: A shell reports a program that a signal killed as this plus the signal's number; so does `guard`.
SIGNALS = 128


@dataclass(frozen=True)
class Ended:
    """How a command ended, and the last lines that it printed."""

    code: int
    tail: str = ""

    @property
    def signal(self) -> str:
        """The name of the signal that killed it; "" if none did."""
        try:
            return signal.Signals(self.code - SIGNALS).name
        except ValueError:
            return ""


class JobProcess:
    """The actor of a step's process; only one of its methods is called."""

    def call(self, start: Start, function: Callable[..., Any], arguments: dict[str, Any]) -> str:
        return call(start, function, arguments)

    def run(self, start: Start, command: list[str] | str, variables: dict[str, str]) -> Ended:
        return run_command(start, command, variables)


def call(start: Start, function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """Call a user's function; returns its value as JSON. Raises UserCodeError if it cannot be JSON."""
    os.environ.update(_variables(start))
    try:
        value = function(**arguments)
    except SystemExit as exc:
        if exc.code not in (None, 0):
            raise UserCodeError(f"function: called sys.exit({exc.code!r}); expected a return, or an exception") from exc
        value = None
    return as_json(value)


def as_json(value: Any) -> str:
    """A returned value as JSON, with numpy's and torch's values as numbers and lists. Raises UserCodeError."""
    expected = "expected plain JSON data: write anything else to step.output() and return where it is"
    try:
        text = json.dumps(to_jsonable_python(value, fallback=_plain), allow_nan=False)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as exc:
        raise UserCodeError(f"function: returned {type(value).__name__} that is not JSON ({exc}); {expected}") from None
    if len(text) > VALUE_BYTES:
        raise UserCodeError(f"function: returned {len(text):,} bytes of JSON; expected at most {VALUE_BYTES:,}: {expected}")
    return text


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")


def run_command(start: Start, command: list[str] | str, variables: dict[str, str]) -> Ended:
    """Run a command; its output goes to this process's output. `variables`: set for it besides this process's own."""
    arguments = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    python = os.path.dirname(sys.executable)  # the one that Ray runs in, whatever the shell of the head finds first
    environment = {**os.environ, **variables, **_variables(start)}
    environment["PATH"] = os.pathsep.join([python, *filter(None, [environment.get("PATH")])])
    tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
    reading, writing = os.pipe()
    with (
        open(reading) as status,
        subprocess.Popen(
            [sys.executable, "-m", "plugin_core.driver.ray_job.guard", str(writing), *arguments],
            env=environment,
            stdin=subprocess.PIPE,  # it closes when this process dies, however that happens
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
        ) as guard,
    ):
        os.close(writing)
        assert guard.stdout is not None
        while line := guard.stdout.readline(LINE_BYTES):
            text = line.decode(errors="replace")
            sys.stdout.write(text)
            sys.stdout.flush()
            tail.append(text)
        code = status.read()
    return Ended(int(code) if code else SIGNALS + signal.SIGKILL, "".join(tail))


def _variables(start: Start) -> dict[str, str]:
    return {step.VARIABLE: json.dumps(asdict(start))}
