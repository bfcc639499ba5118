"""Checks of some kinds of steps before anything is submitted: the `check` in their declarations."""

from __future__ import annotations

import contextlib

from plugin_core.driver.tune.algorithms import make_scheduler, make_searcher
from plugin_core.errors import SpecError, StorageError
from plugin_core.runs import finished_search
from plugin_core.runs.directory import RunDir
from plugin_core.runs.lineage import check_checkpoint
from plugin_core.runs.output_folder import check_output
from plugin_core.specs.batch_infer import BatchInferSpec
from plugin_core.specs.tune import TuneSpec
from plugin_core.storage.location import Location
from plugin_core.storage.refusals import refusal
from plugin_core.supervisor.generations import newest_run


def batch_infer(spec: BatchInferSpec, here: bool, current: RunDir | None = None) -> None:
    """Raise SpecError if the output folder belongs to another run, or cannot be written."""
    if spec.output_path is None:
        return
    output, run = Location.of(spec.output_path, "output_path"), RunDir.of(spec)
    if not here and output.is_local:
        return
    try:
        check_output(output, run.location)
    except StorageError as exc:
        if why := refusal(exc):
            raise SpecError(f"output_path: got {spec.output_path!r}, {why}; expected a folder to write to") from exc
        raise


def tune(spec: TuneSpec, here: bool, current: RunDir | None = None) -> None:
    """Raise SpecError if a checkpoint that trials may start from cannot be used, a package for the search is missing, or
    the finished search that this one continues does not allow it."""
    starts = [trial.resume_from.uri for trial in spec.variants() if trial.resume_from is not None]
    for uri in dict.fromkeys(starts):
        if here or not Location.of(uri).is_local:
            check_checkpoint("param_space.resume_from", uri)
    if here:
        make_scheduler(spec.scheduler)
        make_searcher(spec.search_alg)
    _resumed(spec, here, current)


def _resumed(spec: TuneSpec, here: bool, current: RunDir | None) -> None:
    """A search that has begun keeps to what it took from the finished one then, so that one is not looked at again."""
    if spec.resume_from is None:
        return
    place = Location.of(spec.resume_from.search, finished_search.FIELD)
    if place.is_local and not here:
        return
    with contextlib.suppress(StorageError):  # then the cluster checks it, and reports it
        if not (current or newest_run(spec)).step.child(finished_search.PLAN).is_file():
            finished_search.check(spec, finished_search.read(spec.resume_from.search))
