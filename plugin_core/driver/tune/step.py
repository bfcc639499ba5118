"""Tune: Ray Tune over trials that are Ray Train runs → TuneResult.

Ray Tune's state is kept in `tune/` of the run directory, through the fenced filesystem; each trial's results in its own
run (`_children/`). An attempt restores both: finished trials are not run again, and a trial that was running resumes from
its last checkpoint.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from plugin_core.driver.admission import AUTOSCALING
from plugin_core.driver.fenced_filesystem import EXPERIMENT, fenced_filesystem
from plugin_core.driver.tune.algorithms import make_scheduler
from plugin_core.driver.tune.collect import collect
from plugin_core.driver.tune.resumed import Resumed, release, resumed
from plugin_core.driver.tune.sampling import trials_for_tuner
from plugin_core.driver.watchdog import spent_before_s
from plugin_core.runs import code
from plugin_core.runs.finished_search import best_of
from plugin_core.runs.journal import JournalWriter, iter_reports
from plugin_core.specs import TuneSpec
from plugin_core.specs.results import TuneResult
from plugin_core.specs.step import in_sum

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: Seconds between two saves of Ray Tune's state; Ray's default is at least 10.
SAVE_S = 1.0
#: A trial's actor needs no resources besides its workers', but Ray Tune requires some: one byte of memory.
TRIAL_RESOURCES = {"CPU": 0, "memory": 1}

logger = logging.getLogger(__name__)


def run(context: StepContext) -> TuneResult:
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", f"{SAVE_S:g}")
    from ray import tune

    from plugin_core.driver.tune import callbacks, report_channel
    from plugin_core.driver.tune.trial import Trial

    spec = context.spec
    assert isinstance(spec, TuneSpec)
    taken = resumed(context)
    journal = JournalWriter(context.rundir, context.attempt)
    search = callbacks.begin(
        callbacks.Search(spec, journal, _deadline(spec, context), _planned(spec, taken), best=_best_so_far(spec, taken))
    )
    search.goes_on(iter_reports(context.rundir))
    filesystem = fenced_filesystem(context.rundir.uri, context.attempt)
    place = context.rundir.location.child(EXPERIMENT)
    mailbox = report_channel.make()
    search.release = mailbox.stop.remote
    parameters = {"run_uri": context.rundir.uri, "attempt": context.attempt, "mailbox": mailbox}
    parameters["code"] = code.of_held(context.rundir)
    trainable = tune.with_resources(tune.with_parameters(Trial, **parameters), TRIAL_RESOURCES)
    context.set_phase("searching")
    if any(name.startswith("experiment_state") for name in place.names()):
        logger.info("resuming the search")
        tuner = tune.Tuner.restore(place.path, trainable, storage_filesystem=filesystem, resume_unfinished=True)
    else:
        space, trials = trials_for_tuner(spec, _concurrent_trials(spec), taken)
        failures = spec.train.run_config.failure_config.max_failures
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric=spec.metric, mode=spec.mode, scheduler=make_scheduler(spec.scheduler), **trials
            ),
            run_config=tune.RunConfig(
                name=EXPERIMENT,
                storage_path=context.rundir.location.path,
                storage_filesystem=filesystem,
                stop=callbacks.Stop(),
                callbacks=[callbacks.Report()],
                failure_config=tune.FailureConfig(max_failures=failures),
                verbose=0,
            ),
        )
    try:
        grid = tuner.fit()
    finally:
        journal.close()
    if search.fatal is not None:
        raise search.fatal
    context.set_phase("collecting")
    result = collect(grid, spec, context, taken)
    if taken is not None:
        release(taken, context, result.best)
    return result


def _planned(spec: TuneSpec, taken: Resumed | None) -> int:
    """How many trials will run."""
    return len(taken.given) if taken is not None and taken.given is not None else spec.trials or 1


def _best_so_far(spec: TuneSpec, taken: Resumed | None) -> float | None:
    """The best metric of the trials that are kept, unless they train further."""
    if taken is None or spec.resume_from is None or spec.resume_from.trials != "none":
        return None
    best = best_of(taken.kept, spec)
    return best[spec.metric] if best is not None else None


def _deadline(spec: TuneSpec, context: StepContext) -> float | None:
    """The deadline on this process's monotonic clock, minus the time earlier attempts took; None if there is none."""
    if spec.time_budget_s is None:
        return None
    return time.monotonic() + spec.time_budget_s - spent_before_s(context.rundir, context.attempt)


def _concurrent_trials(spec: TuneSpec) -> int:
    """How many trials run at once: as many as the spec allows and as fit on the cluster, but at least one. With more,
    some would hold what others wait for. An autoscaling cluster is left to grow."""
    import ray

    if spec.max_concurrent_trials and os.environ.get(AUTOSCALING):
        return spec.max_concurrent_trials
    have, wanted = ray.cluster_resources(), in_sum(spec.bundles())
    fit = max(1, int(min(have.get(name, 0.0) // amount for name, amount in wanted.items() if amount)))
    return min(spec.max_concurrent_trials or fit, fit)
