"""For the function or command of a RayJobSpec: save its progress, so that it continues from there after a restart.

from plugin_core.loops import step

done = step.load() or []
for part in parts:
    if part not in done:
        work(part, f"{step.output()}/{part}.parquet")
        done.append(part)
        step.save(done)
"""

from __future__ import annotations

import json
import os
from typing import Any

from plugin_core.runs.saved_state import Start

#: The variable that identifies the step in its process, and in those that it starts itself: JSON of a `Start`.
VARIABLE = "RAYTRAIN_STEP"


def save(state: Any) -> None:
    """Replace the step's saved state with `state`, plain JSON data of at most 1 MiB. It is on storage when this
    returns.

    Raises UserCodeError for other data, FencedError if the step was started again elsewhere, StorageError, and RuntimeError
    outside the step's own process.
    """
    _here().save(state)


def load() -> Any:
    """The last saved state, from this attempt or an earlier one; None if there is none. Raises StorageError, and
    RuntimeError outside the step's own process."""
    return _here().load()


def output() -> str:
    """The URI of a folder in the run directory for the step's files, the same in all attempts. It may not exist yet."""
    return _here().output.uri


def _here() -> Start:
    if (text := os.environ.get(VARIABLE)) is None:
        raise RuntimeError(
            "step: this is not the process of a step; expected a call in the function or command of a RayJobSpec, not in"
            " a Ray task that it starts"
        )
    return Start(**json.loads(text))
