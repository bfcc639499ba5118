"""Figures as PNG; none without matplotlib, which is optional."""

from __future__ import annotations

import io
from typing import Any


def new_figure(width: float, height: float) -> Any | None:
    """An empty figure of this size in inches; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained", dpi=90)


def png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
