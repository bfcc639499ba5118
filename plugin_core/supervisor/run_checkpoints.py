"""Before a submit: if a step names a run directory as a checkpoint, takes a checkpoint of that run."""

from __future__ import annotations

from plugin_core.errors import StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.run_checkpoint import checkpoint_of
from plugin_core.specs import StepSpec
from plugin_core.specs.json_values import flat
from plugin_core.specs.results import CheckpointRef
from plugin_core.storage.location import Location
from plugin_core.supervisor.generations import newest_run
from plugin_core.supervisor.preflight import named_checkpoints


def with_checkpoints(spec: StepSpec, here: bool, current: RunDir | None = None) -> tuple[StepSpec, list[str]]:
    """The spec with a checkpoint in place of each run directory, and a remark about each choice. A retry keeps the choice,
    whatever the other run has reported since.

    `here`, `current`: as in `prepare`. Blocks. Raises SpecError for a run without a checkpoint.
    """
    remarks: list[str] = []
    for field, given in named_checkpoints(spec):
        place = Location.of(given.uri, field)
        if place.is_local and not here:
            continue
        source = RunDir.at(given.uri)
        try:
            if not source.exists():
                continue
        except StorageError:
            continue  # the cluster may be able to read it
        chosen, which = _chosen_before(spec, field, place, current) or checkpoint_of(source, field)
        spec = _replaced(spec, field.split("."), chosen)
        remarks.append(f"{field}: {given.uri} is a run; taking its {which} checkpoint, {Location.of(chosen.uri).name}")
    return spec, remarks


def _chosen_before(spec: StepSpec, field: str, place: Location, current: RunDir | None) -> tuple[CheckpointRef, str] | None:
    """What this step's run chose when it was first requested."""
    rundir = current or newest_run(spec)
    if not rundir.exists():
        return None
    uri = flat(rundir.read_record()["spec"]).get(f"{field}.uri")
    return (CheckpointRef(uri=uri), "earlier chosen") if isinstance(uri, str) and place.inside(uri) else None


def _replaced(spec: StepSpec, path: list[str], chosen: CheckpointRef) -> StepSpec:
    name, *inner = path
    value = _replaced(getattr(spec, name), inner, chosen) if inner else chosen
    return spec.model_copy(update={name: value})
