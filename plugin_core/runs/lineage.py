"""Check a checkpoint's existence, integrity and framework against the run that wrote it."""

from __future__ import annotations

import contextlib
import os

from plugin_core.errors import SpecError, StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.pins import home_of
from plugin_core.specs import StepSpec, TrainSpec, TuneSpec
from plugin_core.specs.functions import by_value_name
from plugin_core.specs.parts import all_functions, is_name_of_value
from plugin_core.specs.results import TuneResult
from plugin_core.specs.space_functions import with_functions
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.location import Location

#: Ray Train's index of the checkpoints in its folder of a training.
SNAPSHOT = "checkpoint_manager_snapshot.json"
#: How many entries of a folder are checked to tell whether it is a storage path.
LOOKED_AT = 3


def check_checkpoint(field: str, uri: str) -> None:
    """Raise SpecError if the checkpoint is missing or damaged. If storage cannot be read now, the cluster checks again."""
    place = Location.of(uri, field)
    if place.is_local and os.path.isfile(place.path):
        raise SpecError(f"{field}: got {uri!r}, a file; expected a checkpoint, which is a folder, or a run directory")
    try:
        names, problem = place.names(), checkpoint_manifest.problem(place)
        what = _other_folder(place, names)
    except StorageError:
        return
    if what:
        raise SpecError(f"{field}: got {uri!r}, {what}")
    if not names:
        raise SpecError(f"{field}: got {uri!r}, which does not exist or was deleted; expected a checkpoint")
    if problem:
        raise checkpoint_manifest.damaged(uri, problem, field)


def _other_folder(place: Location, names: list[str]) -> str:
    """What a folder is if it is certainly not a checkpoint, and what to give instead; "" if it may be one."""
    if SNAPSHOT in names:
        inside = [name for name in names if name.startswith("checkpoint_") and name != SNAPSHOT]
        return f"a folder of Ray's own; expected one of its checkpoints ({', '.join(inside[-LOOKED_AT:]) or 'it has none'})"
    if checkpoint_manifest.FOLDER in names:
        return ""
    runs = [name for name in names[:LOOKED_AT] if _is_run(place.child(name))]
    return f"a folder of runs; expected one of them, like {runs[0]!r}, or a checkpoint" if runs else ""


def _is_run(place: Location) -> bool:
    with contextlib.suppress(StorageError):  # a file
        return RunDir(place).exists()
    return False


def check_framework(spec: StepSpec) -> None:
    """Raise SpecError if a step's checkpoints come from a framework other than the one it expects. Checkpoints from outside
    our runs are not checked. Raises StorageError if the framework cannot be determined."""
    expected = getattr(spec, "framework", None)
    for field in ("checkpoint", "compare_to"):
        uri = getattr(getattr(spec, field, None), "uri", None)
        if uri is None or expected is None:
            continue
        home = home_of(uri)
        made_by = home.read_record()["spec"].get("framework") if home is not None else None
        if made_by is not None and made_by != expected:
            raise SpecError(
                f"{field}: got {uri!r}, a checkpoint of framework {made_by!r}; expected one of framework {expected!r}"
            )


def best_train_spec(result: TuneResult, train: TrainSpec | TuneSpec | None = None) -> TrainSpec:
    """The training spec with the best trial's values from the search space.

    `train`: the spec that was tuned, or the search's. By default it is read from the run directory. Raises SpecError if the
    training has a function that was sent by value and that `train` does not contain.
    """
    if isinstance(train, TrainSpec) and not result.best_config:
        return train
    search = train if isinstance(train, TuneSpec) else RunDir.at(result.run.uri).read_spec()
    assert isinstance(search, TuneSpec)
    if isinstance(train, TrainSpec):
        search = search.model_copy(update={"train": train})
    known = {by_value_name(value): value for value in all_functions(search).values() if callable(value)}
    best = search.trial_spec(with_functions(result.best_config, lambda name: known.get(name, name)))
    if missing := [field for field, value in all_functions(best).items() if is_name_of_value(value)]:
        given = "missing" if train is None else f"got a {type(train).__name__}"
        raise SpecError(
            f"train: {given}; expected the search's TuneSpec, or the TrainSpec that has the function, because"
            f" {', '.join(missing)} was sent by value"
        )
    return best
