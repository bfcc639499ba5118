"""Check a checkpoint's existence, integrity and framework against the run that wrote it."""

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
    """Raise SpecError if the checkpoint is missing or damaged. If storage cannot be read now, the cluster checks again."""
    place = Location.of(uri, field)
    try:
        there, problem = bool(place.names()), checkpoint_manifest.problem(place)
    except StorageError:
        return
    if not there:
        raise SpecError(f"{field}: got {uri!r}, which does not exist or was deleted; expected a checkpoint")
    if problem:
        raise checkpoint_manifest.damaged(uri, problem, field)


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


def best_train_spec(result: TuneResult, train: TrainSpec | None = None) -> TrainSpec:
    """The training spec with the best trial's values from the search space.

    `train`: the spec that was tuned. By default it is read from the run directory, which requires a train loop by
    reference; raises SpecError otherwise.
    """
    if train is None:
        search = RunDir.at(result.run.uri).read_spec()
        assert isinstance(search, TuneSpec)
        train = search.train
        if is_by_value(str(train.model_dump(mode="json").get("train_loop_per_worker"))):
            raise SpecError("train: missing; expected the TrainSpec, because its train_loop_per_worker was sent by value")
    return TrainSpec(**merged(train.model_dump(), result.best_config))
