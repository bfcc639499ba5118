"""How a stalled training is detected."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from plugin_core.specs.base import Model
from plugin_core.specs.fields import Amount, Seconds


class HangDetection(Model):
    """A training hangs when it reports nothing for longer than its earlier reports suggest: `factor` times their median
    interval, three times the longest one, or `min_s`, whichever is longest. Checkpoint uploads and calls of
    `plugin_core.loops.progress()` count as progress. The trials of a search and `execute()` are not watched."""

    action: Literal["off", "warn", "restart"] = Field(
        "warn",
        description="`warn`: tell the log, and keep the stacks of all ranks; `restart`: also restart from the checkpoint",
    )
    start_s: Seconds = Field(3600.0, description="the bound until the first two reports of a worker group")
    min_s: Seconds = Field(600.0, description="the least bound after them")
    factor: Annotated[Amount, Ge(1)] = Field(30.0, description="median intervals of reports; an evaluation may take many")
