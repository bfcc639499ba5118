"""What a checkpoint is of: the run that made it says so."""

from __future__ import annotations

from plugin_core.errors import SpecError
from plugin_core.pins import home_of
from plugin_core.specs import StepSpec


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
