"""The trail of the chaos tests: what each process of a run began, and when; and a barrier that holds it there."""

import json
import math
import os
import time
from pathlib import Path
from typing import Any


def note(trail: str, **entry: Any) -> None:
    """Append a line to the trail; one `write` of a short line is atomic for O_APPEND. Waits there while `hold` says so."""
    line = json.dumps({"pid": os.getpid(), "time": time.time(), **entry}) + "\n"
    descriptor = os.open(trail, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    while entry["step"] >= _held_at(trail):
        time.sleep(0.05)


def hold(trail: str, step: int) -> None:
    """From now on, whoever notes `step` or a later one waits until this is said of a later step."""
    new = _hold_file(trail).with_suffix(".new")
    new.write_text(str(step))
    new.replace(_hold_file(trail))


def release(trail: str) -> None:
    _hold_file(trail).unlink()


def _hold_file(trail: str) -> Path:
    return Path(f"{trail}.hold")


def _held_at(trail: str) -> float:
    try:
        return int(_hold_file(trail).read_text())
    except FileNotFoundError:
        return math.inf
