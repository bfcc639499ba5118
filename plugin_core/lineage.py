"""What a checkpoint is of: the run that made it says so."""

from __future__ import annotations

from plugin_core import manifest
from plugin_core.errors import SpecError, StorageError
from plugin_core.pins import home_of
from plugin_core.specs import StepSpec
from plugin_core.storage import Location


def check_checkpoint(field: str, uri: str) -> None:
    """Raise SpecError where there is no checkpoint (any more), or a damaged one. Where that cannot be told just now, the
    cluster looks again."""
    place = Location.of(uri, field)
    try:
        there, problem = bool(place.names()), manifest.problem(place)
    except StorageError:
        return
    if not there:
        raise SpecError(f"{field}: given {uri!r}, where there is nothing (any more); accepted is a checkpoint that is kept")
    if problem:
        raise manifest.damaged(uri, problem, field)


def check_framework(spec: StepSpec) -> None:
    """Raise SpecError where a step expects checkpoints of another framework than those that it is given. What was made
    outside of our runs is taken as it is. Raises StorageError where that cannot be told."""
    expected = getattr(spec, "framework", None)
    for field in ("checkpoint", "compare_to"):
        uri = getattr(getattr(spec, field, None), "uri", None)
        if uri is None or expected is None:
            continue
        home = home_of(uri)
        made_by = home.read_record()["spec"].get("framework") if home is not None else None
        if made_by is not None and made_by != expected:
            raise SpecError(
                f"{field}: given {uri!r}, which a training with framework {made_by!r} made; accepted is one of framework"
                f" {expected!r}"
            )
