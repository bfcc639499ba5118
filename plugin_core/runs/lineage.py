"""What a checkpoint is of: the run that made it says so."""

from __future__ import annotations

from plugin_core.errors import SpecError, StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.pins import home_of
from plugin_core.specs import StepSpec, TrainSpec, TuneSpec
from plugin_core.specs.functions import is_by_value
from plugin_core.specs.results import TuneResult
from plugin_core.specs.search_space import merged
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.location import Location


def check_checkpoint(field: str, uri: str) -> None:
    """Raise SpecError where there is no checkpoint (any more), or a damaged one. Where that cannot be told just now, the
    cluster looks again."""
    place = Location.of(uri, field)
    try:
        there, problem = bool(place.names()), checkpoint_manifest.problem(place)
    except StorageError:
        return
    if not there:
        raise SpecError(f"{field}: got {uri!r}, where there is nothing (any more); expected a checkpoint that is kept")
    if problem:
        raise checkpoint_manifest.damaged(uri, problem, field)


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
                f"{field}: got {uri!r}, which a training with framework {made_by!r} made; expected one of framework"
                f" {expected!r}"
            )


def best_train_spec(result: TuneResult, train: TrainSpec | None = None) -> TrainSpec:
    """The training spec with the values that the best trial of a search took from the search space.

    `train`: the spec that was searched over. It is read from the run directory by default, which only works where its
    train loop was given by reference. Raises SpecError where it was not.
    """
    if train is None:
        search = RunDir.at(result.run.uri).read_spec()
        assert isinstance(search, TuneSpec)
        train = search.train
        if is_by_value(str(train.model_dump(mode="json").get("train_loop_per_worker"))):
            raise SpecError("train: missing; expected the TrainSpec, whose train_loop_per_worker was sent by value")
    return TrainSpec(**merged(train.model_dump(), result.best_config))
