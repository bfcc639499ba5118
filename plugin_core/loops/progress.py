"""For loops that report rarely: tells that the loop goes on."""

from __future__ import annotations


def progress() -> None:
    """Tell the hang detection that this worker makes progress. Costs nothing worth counting; call it as often as you like.
    Outside a training it does nothing."""
    from plugin_core.ray_internals.polled_worker import made_progress

    made_progress()
