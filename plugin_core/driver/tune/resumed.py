"""What a search takes over from a finished one. Its first attempt decides that for all its attempts.

The decision is kept in the run directory, so an attempt after a kill neither looks at the finished search again nor
takes anything else from it. The checkpoints that the search needs are pinned first.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError
from plugin_core.runs import finished_search
from plugin_core.runs.directory import RunDir
from plugin_core.runs.pins import pin, unpin
from plugin_core.specs import TuneSpec
from plugin_core.specs.results import TrainResult
from plugin_core.storage.stored_files import parse
from plugin_core.storage.threads import parallel

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: In the config of a trial that trains further: its run in the finished search, the checkpoint that it starts from, and its
#: metric so far.
RESUMED = "resumed"


@dataclass(frozen=True)
class Resumed:
    """`kept`: the rows of the finished search's trials. `given`: the configs of the trials to run; None: they are sampled.
    `pinned`: checkpoints of the finished search."""

    kept: list[dict[str, Any]]
    given: list[dict[str, Any]] | None
    pinned: list[str]

    @property
    def without_checkpoint(self) -> int:
        """How many trials have no checkpoint to train further from, and so start from scratch."""
        return sum(config[RESUMED]["checkpoint"] is None for config in self.given or [] if RESUMED in config)

    def row_of(self, run: str) -> dict[str, Any]:
        return next(row for row in self.kept if row["run"] == run)


def resumed(context: StepContext) -> Resumed | None:
    """What this search takes over from a finished one; None if its spec names none. Raises SpecError if impossible."""
    spec = context.spec
    assert isinstance(spec, TuneSpec)
    if spec.resume_from is None:
        return None
    place = context.rundir.step.child(finished_search.PLAN)
    if (data := place.read(finished_search.TABLE_BYTES)) is None:
        made = _taken(spec, finished_search.read(spec.resume_from.search))
        parallel(lambda uri: pin(uri, by=context.rundir.uri), made.pinned)
        place.create(json.dumps(asdict(made)).encode())
        data = place.read(finished_search.TABLE_BYTES) or b"{}"
    return parse(Resumed, data, place.uri)


def _taken(spec: TuneSpec, finished: finished_search.FinishedSearch) -> Resumed:
    assert spec.resume_from is not None
    finished_search.check(spec, finished)
    kept = [{**row, "status": "kept"} for row in finished.rows]
    if spec.resume_from.trials == "none":
        best = finished.best
        assert best is not None
        named = finished_search.checkpoints_of(RunDir.at(best["run"]))
        pinned = sorted({reference.uri for reference in named if reference is not None})
        return Resumed(kept, finished_search.grid_left(spec, finished), pinned)
    further = finished_search.further_configs(spec, finished)
    found = parallel(lambda pair: finished_search.checkpoints_of(RunDir.at(pair[0]["run"])), further)
    checkpoints = [last.uri if last is not None else None for _, last in found]
    if not any(checkpoints):
        why = f"got {spec.resume_from.trials!r}, but no trial has a checkpoint to train further from"
        raise SpecError(f"resume_from.trials: {why}; expected 'none', or a search whose trials reported some")
    given = [
        {**config, RESUMED: {"run": row["run"], "checkpoint": checkpoint, "value": row.get(spec.metric)}}
        for (row, config), checkpoint in zip(further, checkpoints, strict=True)
    ]
    return Resumed(kept, given, [checkpoint for checkpoint in checkpoints if checkpoint is not None])


def release(taken: Resumed, context: StepContext, best: TrainResult) -> None:
    """Unpin what the search needed while it ran, except for the checkpoints of its result. An attempt that is killed
    meanwhile has no trial left that needs them."""
    search = context.rundir
    named = {reference.uri for reference in (best.checkpoint, best.best_checkpoint) if reference is not None}
    theirs = {uri for uri in named if search.location.inside(uri) is None}
    for uri in theirs:
        pin(uri, by=search.uri)
    for uri in taken.pinned:
        if uri not in theirs:
            unpin(uri, by=search.uri)
    for config in taken.given or []:
        if RESUMED in config and (start := config[RESUMED]["checkpoint"]) is not None:
            unpin(start, by=search.child(RunDir.at(config[RESUMED]["run"]).name).uri)
