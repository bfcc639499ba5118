"""The runs whose journals hold the reports of a step that trains through other runs: those of a search or a retraining."""

from __future__ import annotations

from plugin_core.errors import SpecError
from plugin_core.runs.directory import CHILDREN, RunDir, run_name
from plugin_core.specs.functions import import_function
from plugin_core.specs.results import TuneResult
from plugin_core.specs.step_kinds import step_kind


def training_of(rundir: RunDir) -> RunDir:
    """The run whose journal has the reports: this one, unless its kind names another. Raises SpecError."""
    reference = step_kind(rundir.read_record()["kind"]).training
    if reference is None:
        return rundir
    found: RunDir = import_function("training", reference)(rundir)
    return found


def best_trial(search: RunDir) -> RunDir:
    """The best trial of a finished search. Raises SpecError if the search has no result yet."""
    result = search.result()
    if not isinstance(result, TuneResult):
        raise SpecError(
            f"run: got {search.uri!r}, a search without a result yet; expected a finished search, a training, or a trial"
            f" of the search (a folder in {search.location.child(CHILDREN).uri})"
        )
    return search.child(result.best.run.name)


def of_retraining(retraining: RunDir) -> RunDir:
    """The training of a retraining, or the retraining itself before its training exists."""
    training = retraining.child(run_name(retraining.name, "train"))
    return training if training.exists() else retraining
