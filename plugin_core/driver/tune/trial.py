"""One trial: a Ray Train run nested in the search's run, whose reports are passed to Ray Tune one by one.

A trial that gets another trial's checkpoint (population based training) starts a new *leg*: a separate run,
warm-started from it. So does a trial of a finished search that trains further. A leg is named after what it starts
from, so starting it again resumes it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.result import RESULT_DUPLICATE

from plugin_core.driver.tune.report_channel import LEG, REPORTS, STOPPED, Sender
from plugin_core.driver.tune.resumed import RESUMED
from plugin_core.errors import RayTrainWorkflowsError, SpecError, UserCodeError, from_outcome
from plugin_core.errors.classify import classify
from plugin_core.errors.shown import did_you_mean
from plugin_core.runs.code import hold
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.runs.journal import iter_reports
from plugin_core.runs.pins import pin
from plugin_core.specs import TrainSpec, TuneSpec
from plugin_core.specs.parts import is_name_of_value
from plugin_core.specs.results import CheckpointRef
from plugin_core.specs.search_space import values_by_path
from plugin_core.specs.space_functions import with_functions
from plugin_core.storage.location import be_patient
from plugin_core.tracking.session import end_trackers

#: What Ray Tune stores as a trial's checkpoint: a reference to the real one.
REFERENCE = "reference.json"

logger = logging.getLogger(__name__)


class Trial(tune.Trainable):
    """Ray Tune's side of a trial, in an actor without resources of its own. `attempt` is the search's."""

    def setup(
        self, config: dict[str, Any], run_uri: str = "", attempt: int = 0, mailbox: Any = None, code: str = ""
    ) -> None:
        be_patient()
        search = RunDir.at(run_uri)
        hold(search, code)
        spec = search.read_spec()
        assert isinstance(spec, TuneSpec)
        self._search_spec = spec
        self._chosen = {name: value for name, value in config.items() if name != RESUMED}
        #: what the trial continues from, if it comes from a finished search
        self._resumed: dict[str, Any] = config.get(RESUMED, {})
        self._mailbox = mailbox
        self._context = StepContext(spec, search, attempt, search.read_payload(), lambda phase: None)
        self._reference: dict[str, Any] = {}
        self._leg: RunDir | None = None
        self._told = 0
        #: the number of the last report that Ray Tune got
        self._taken = 0
        #: the checkpoint of another trial that the leg starts from (a URI, or ""), and the latest of its own (a name)
        self._start = ""
        self._latest: str | None = None
        #: reports from before this actor started that Ray Tune never got or has lost
        self._before: deque[dict[str, Any]] = deque()
        self._error: Exception | None = None
        #: why the trial is not to go on, as recorded
        self._final: RayTrainWorkflowsError | None = None

    def step(self) -> dict[str, Any]:
        """Return the next report. Raises the training's error if it failed."""
        leg = self._leg or self._begin()
        entry = self._before.popleft() if self._before else self._next(leg)
        if entry is None:
            return self._end()
        if entry == STOPPED:
            return {RESULT_DUPLICATE: True, "done": True}  # which nobody waits for
        self._told += 1
        self._taken = entry.get("report", 0)
        self._latest = entry.get("checkpoint") or self._latest
        metrics = {name: float("nan") if value is None else value for name, value in entry["metrics"].items()}
        self._check(metrics)
        return {**metrics, LEG: leg.name, REPORTS: self._told}

    def _next(self, leg: RunDir) -> dict[str, Any] | None:
        """The training's next report; None once it is over. A mailbox that was killed gets the last one again."""
        while True:
            entry: dict[str, Any] | None = ray.get(self._mailbox.next.remote(leg.name))
            if entry is None or entry == STOPPED or entry.get("report", 0) != self._taken:
                return entry

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        reference = self._reference  # as restored, if nothing has started since
        if self._leg is not None:
            latest = self._leg.location.child(self._latest).uri if self._latest else self._start
            reference = {
                "trial": self.trial_id,
                "leg": self._leg.name,
                "start": self._start,
                "reports": self._told,
                "checkpoint": latest,
            }
            self._check_checkpoint(latest)
        Path(checkpoint_dir, REFERENCE).write_text(json.dumps(reference))

    def cleanup(self) -> None:
        """Ray Tune ends this process: the trial is over, stopped early, or paused. A paused one's trackers begin again."""
        if self._final is not None:
            end_trackers("failed", self._final.message)
        else:
            end_trackers("finished")

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self._reference = json.loads(Path(checkpoint_dir, REFERENCE).read_text())

    # ---- how

    def _begin(self) -> RunDir:
        # before it is compared with what a leg has, which is this search's tracking
        spec = self._search_spec.trial_spec(self._chosen).model_copy(update={"tracking": self._search_spec.tracking})
        given, name = self._reference, f"trial-{self.trial_id}"
        if given and given["trial"] == self.trial_id and not self._changed(given["leg"], spec):
            name, self._start = given["leg"], given["start"]  # paused or restored: the same leg continues
        elif given and given["checkpoint"]:
            self._start = given["checkpoint"]
            name = f"{name}-{self._mark()}"
        elif self._resumed:
            # under its former name, the train function takes the checkpoint for its own, and continues counting
            name, self._start = RunDir.at(self._resumed["run"]).name, self._resumed["checkpoint"] or ""
        elif self._is_of_another(name, spec):
            name = f"{name}-{self._mark()}"
        if self._start:
            spec = spec.model_copy(update={"resume_from": CheckpointRef(uri=self._start)})
        child = self._context.child(name, spec, "train")
        leg = self._leg = child.rundir
        if (ended := leg.end(child.attempt)) is not None:
            # Ray Tune retries a failed trial, but the recorded error would only recur
            raise from_outcome(ended.outcome, ended.message, ended.details, ended.cause)
        if spec.resume_from is not None:
            pin(spec.resume_from.uri, by=leg.uri)
        told = given["reports"] if given and name == given["leg"] else 0
        self._told = 0
        for entry in iter_reports(leg):
            if self._told < told:
                self._told += 1
                self._latest = entry.get("checkpoint") or self._latest
            else:
                self._before.append(entry)
        ray.get(self._mailbox.begin.remote(name))
        threading.Thread(target=self._train, args=(child,), daemon=True, name="fit").start()
        return leg

    def _changed(self, leg: str, spec: TrainSpec) -> bool:
        kept = self._context.rundir.child(leg).read_record()["spec"]
        return bool({**kept, "run_config": None, "resume_from": None} != {
            **spec.to_json(), "run_config": None, "resume_from": None,
        })  # fmt: skip

    def _is_of_another(self, name: str, spec: TrainSpec) -> bool:
        """Whether a run of that name has other values: if a kill comes before Ray Tune has saved a trial, it draws again
        and gives the same id."""
        leg = self._context.rundir.child(name)
        if not leg.exists():
            return False
        kept, now = (
            values_by_path(self._search_spec.param_space, with_functions(each, _without_digest))
            for each in (leg.read_record()["spec"], spec.to_json())
        )
        return kept is not None and kept != now

    def _mark(self) -> str:
        """A digest of what a leg starts from, and of its values."""
        given = json.dumps([self._start or None, self._chosen], sort_keys=True, default=str)
        return hashlib.sha256(given.encode()).hexdigest()[:8]

    def _train(self, child: StepContext) -> None:
        from plugin_core.driver.run_step import run_step

        name = child.rundir.name
        try:
            if child.rundir.result() is None:
                child.rundir.write_result(run_step(child, on_report=Sender(self._mailbox, name)))
        except Exception as exc:  # noqa: BLE001 - re-raised in the actor's main thread
            self._error = exc
        finally:
            ray.get(self._mailbox.end.remote(name))

    def _end(self) -> dict[str, Any]:
        assert self._leg is not None
        if self._error is not None:
            error = classify(self._error)
            if not error.retryable:
                self._record(error)
            raise error from self._error
        if not self._told and self._resumed:
            # nothing was left to train: the trial stays what it was
            value = self._resumed["value"]
            metric = float("nan") if value is None else value
            return {self._search_spec.metric: metric, LEG: self._leg.name, REPORTS: 0, "done": True}
        # a leg that starts from a checkpoint of the last epoch has nothing left to report
        if not self._told and not self._reference:
            metric = self._search_spec.metric
            wanted = f"expected ray.train.report({{{metric!r}: …}}) in it"
            raise self._refused(f"metric: got {metric!r}", f"but the train function reported nothing; {wanted}")
        return {RESULT_DUPLICATE: True, "done": True}

    def _check(self, metrics: dict[str, Any]) -> None:
        """Check that the train function reports what the search needs. If its first report lacks it, each trial's will; a
        later one is the trial's own failure, where Ray Tune would end the search."""
        metric = self._search_spec.metric
        if metric not in metrics:
            if self._told > 1:
                why = f"report {self._told} has no {metric!r}, the search's metric, which those before it have"
                error = UserCodeError(f"the train function's {why}; expected it in each report")
                self._record(error)
                raise error
            expected = (", ".join(metrics) or "nothing") + did_you_mean(metric, metrics)
            raise self._refused(
                f"metric: got {metric!r}", f"which the train function did not report; expected one of {expected}"
            )

    def _check_checkpoint(self, latest: str) -> None:
        """When a population changes, check that the train function has reported a checkpoint to hand over."""
        scheduler = self._search_spec.scheduler
        if scheduler is not None and scheduler.mutations is not None and not latest:
            raise self._refused(
                f"scheduler: got {scheduler.type!r}",
                f"which passes checkpoints between trials, but the train function reported none by report {self._told};"
                " expected checkpoints with its metrics, or a larger perturbation_interval",
            )

    def _refused(self, given: str, why: str) -> SpecError:
        error = SpecError(f"{given}, {why}")
        self._record(error)
        return error

    def _record(self, error: RayTrainWorkflowsError) -> None:
        assert self._leg is not None
        self._final = error
        end = AttemptEnd(error.outcome, error.message, error.details, cause=error.cause)
        self._leg.record_end(self._context.attempt, end)


def _without_digest(text: str) -> str:
    """A function's name without its code's digest: mended code is still the same trial."""
    return text.partition("#")[0] if is_name_of_value(text) else text
