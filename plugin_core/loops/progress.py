"""For loops that report rarely: a sign that the loop is still running."""

from __future__ import annotations


def progress() -> None:
    """Tell hang detection that this worker is making progress. The cost is negligible; call it as often as you like.
    Does nothing outside a training."""
    from plugin_core.ray_internals.polled_worker import made_progress

    made_progress()
