"""The trail of the chaos tests: what each process of a run began, and when."""

import json
import os
import time
from typing import Any


def note(trail: str, **entry: Any) -> None:
    """Append a line to the trail; one `write` of a short line is atomic for O_APPEND."""
    line = json.dumps({"pid": os.getpid(), "time": time.time(), **entry}) + "\n"
    descriptor = os.open(trail, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
