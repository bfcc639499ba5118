"""A tracker: each report as a line of JSON, in a file of the run directory."""

from __future__ import annotations

from typing import Literal

from plugin_core.specs.fields import Name
from plugin_core.specs.tracking import Tracker


class Lines(Tracker):
    """Read wherever specs are written, so it imports nothing heavy. `file`: its name under `tracking/lines`."""

    backend = "acme_raytrain.lines_backend:LinesBackend"

    type: Literal["lines"] = "lines"
    file: Name = "reports.jsonl"
