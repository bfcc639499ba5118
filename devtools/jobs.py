"""Work for the chaos tests other than a training, as a function and as `python -m devtools.jobs TRAIL STEPS
STEP_S`."""

import sys
import time

import psutil

from devtools.notes import note
from plugin_core.loops import step


def stepping(trail: str, steps: int, step_s: float) -> dict[str, int]:
    """Adds up the numbers of its steps, and saves the sum after each."""
    first, total = step.load() or (0, 0)
    for number in range(first, steps):
        note(trail, rank=0, step=number, first=first, created=psutil.Process().create_time())
        total += number
        time.sleep(step_s)
        step.save([number + 1, total])
    return {"step": steps - 1, "total": total}


if __name__ == "__main__":
    print("total:", stepping(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))["total"])
