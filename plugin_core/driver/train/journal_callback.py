"""The Ray Train controller callback that writes the journal."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable
from typing import Any

from plugin_core.driver import masking
from plugin_core.driver.train.judge import Judge
from plugin_core.driver.train.snapshot import RunState
from plugin_core.ray_internals import validations
from plugin_core.ray_internals.controller import (
    ControllerCallback,
    ReportCallback,
    WorkerGroupCallback,
    state_name,
    take_blocked_s,
    worker_processes,
)
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import COUNTERS
from plugin_core.runs.journal import JournalWriter, index_of
from plugin_core.runs.ledger import Ledger
from plugin_core.specs.json_values import is_count
from plugin_core.storage.stored_files import parse_line

#: The most bytes of `unwritten` lines, which are those of about a second.
UNWRITTEN_BYTES = 256 * 1024

logger = logging.getLogger(__name__)


class JournalCallback(ReportCallback, ControllerCallback, WorkerGroupCallback):
    """Writes every report and every phase change to the journal, from Ray Train's controller.

    Ray's public `UserCallback` sees the reports, but neither the phases nor the end of the run, when the last lines must
    be flushed, so this uses the controller's internal callbacks. It never raises: an exception here would be a
    ControllerError, which ends the training. `then` gets each report's entry once it is on storage.

    An entry's `metrics` are rank 0's; with `all_ranks` it also has every rank's, in order, as `ranks`. `report` counts all
    reports. `index` counts them as if nothing had been killed: workers restarted from a checkpoint continue with the index
    after the checkpoint's, so repeated reports repeat an index.

    `blocked_s` of an entry: seconds for which the checkpoints of the reports before it blocked rank 0's loop. `late`:
    an earlier driver got the report, and was killed before it wrote the entry.

    The entry for a restart says why, and what the workers resume from; the one for a failure says why. Both have the
    cause and what the `judge` decided. A report whose checkpoint is to be validated says so, and a later entry says how
    that ended.
    """

    def __init__(
        self,
        run_uri: str,
        attempt: int,
        state: RunState,
        then: Callable[[dict[str, Any]], None] | None = None,
        all_ranks: bool = False,
        judge: Judge | None = None,
    ):
        self._run_uri = run_uri
        self._attempt = attempt
        self._reports = state.reports
        #: the indices of the last report, and of the checkpoint that workers would restart from
        self._index = self._start = state.index
        self._lost = list(state.lost)
        self._then = then
        self._all_ranks = all_ranks
        self._writer: JournalWriter | None = None
        #: the run's ledger before the first entry, if the journal is to contain it
        self.ledger: Ledger | None = None
        self._worker_group: Any = None
        self._judge = judge or Judge()
        self._judge.checkpoints.extend(state.checkpoints)
        self._failed = False
        #: the counters of the latest checkpoint
        self._counters = ""
        #: the index of each checkpoint whose validation has not ended
        self._validating = dict(state.validating)

    # ---- checkpoints that are only on the nodes, and reach storage later (see `tiers`)

    @property
    def start(self) -> int:
        """The index of the checkpoint on storage that workers would restart from."""
        return self._start

    @property
    def index(self) -> int:
        """The index of the last report."""
        return self._index

    def resume_from(self, name: str, index: int, metrics: dict[str, Any]) -> None:
        """The workers that are about to start resume from the nodes' checkpoint."""
        self._index = index
        self.kept_on_nodes(name, metrics)
        self._append({"phase": "resuming", "checkpoint": name, "index": index, "counters": _counters(metrics)})

    def unwritten(self) -> bytes:
        """Lines that may not be on storage yet."""
        return self._writer.unwritten(UNWRITTEN_BYTES) if self._writer is not None else b""

    def restore(self, lines: bytes, index: int) -> None:
        """Take in reports up to `index` that an earlier driver could no longer write. `lines`: its `unwritten`."""
        for entry in filter(None, map(parse_line, lines.splitlines())):
            if entry.get("report") == self._reports + 1 and index_of(entry) <= index:
                self._reports += 1
                self._append({**entry, "late": True})

    def kept_on_nodes(self, name: str, metrics: dict[str, Any]) -> None:
        """Note the newest checkpoint on the nodes; "" if there is none."""
        self._judge.newest = name
        self._counters = _counters(metrics)

    def stored(self, name: str, index: int, metrics: dict[str, Any]) -> None:
        """Storage has the checkpoint of an earlier report. Workers resume from it if the nodes have no newer one."""
        self._start = index
        self._judge.checkpoints.append(name)
        self._append({"phase": "stored", "checkpoint": name, "index": index, "metrics": metrics})

    # ----

    def after_controller_start(self, train_run_context: Any) -> None:
        validations.listen(self._validated)

    def _validated(self, checkpoint: str, status: str, metrics: dict[str, Any]) -> None:
        index = self._validating.pop(checkpoint, 0)
        said = {"phase": "validated", "checkpoint": checkpoint, "index": index, "status": status, "metrics": metrics}
        self._append(said)

    def warn(self, sentence: str, phase: str = "warning", **more: float) -> None:
        """Keep a warning for the result. `more`: other fields of its entry."""
        self._append({"phase": phase, "warning": masking.masked(sentence), **more})

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        self._index = self._start
        while self._lost:
            self._append(self._lost.pop(0))

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        self._append({"phase": "setting_up"})
        return {}

    def after_worker_group_training_start(self, worker_group: Any) -> None:
        self._append({"phase": "looping"})

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._worker_group = worker_group
        found = worker_processes(worker_group)
        self._judge.begin(found)
        hosts = len({process.host for process in found.values()})
        self._append({"phase": "running", "workers": len(found), "hosts": hosts})

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        self._reports += 1
        self._index += 1
        checkpoint = training_report.checkpoint
        name = posixpath.basename(checkpoint.path) if checkpoint else None
        if name is not None:
            self._start = self._index
            self._judge.checkpoints.append(name)
            self._counters = _counters(metrics[0] if metrics else {})
        entry = {
            "report": self._reports,
            "index": self._index,
            "metrics": metrics[0] if metrics else {},
            "checkpoint": name,
        }
        if blocked_s := take_blocked_s(self._worker_group):
            entry["blocked_s"] = round(blocked_s, 4)
        if self._all_ranks:
            entry["ranks"] = metrics
        if name is not None and (wanted := validations.wanted(training_report.validation)) is not None:
            self._validating[name] = self._index
            entry["validation"] = wanted
        self._append(entry)
        if self._then is not None and self._writer is not None:
            self._writer.flush()
            self._then(entry)

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        before, now = state_name(previous_state), state_name(current_state)
        if before == now:
            return
        entry: dict[str, Any] = {"phase": now}
        error = getattr(current_state, "training_failed_error", None)
        try:
            if error is not None and not self._failed:
                entry |= self._why(now, error)
        except Exception:
            logger.exception("the journal does not say why: %s", now)
        self._append(entry)
        if (self._failed or entry.get("by_rule")) and self._writer is not None:
            self._writer.flush()  # the next attempt relies on it

    def _why(self, state: str, error: BaseException) -> dict[str, Any]:
        """What the entry says about an error. One that ends the training is reported once, in whichever state is first."""
        verdict = self._judge.verdict(error, final=state == "errored")
        entry = {**verdict.entry, "why": masking.masked(verdict.why)}
        if verdict.error is not None:
            self._failed = True
            return {**entry, "phase": "failed"}
        latest = bool(verdict.resumes) and verdict.resumes == self._judge.latest
        return {**entry, "from": masking.masked(verdict.resumes + (self._counters if latest else ""))}

    def after_controller_finish(self, result: Any) -> None:
        if self._writer is not None:
            self._writer.close()

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            if self._writer is None:
                self._writer = JournalWriter(RunDir.at(self._run_uri), self._attempt, self.ledger)
            self._writer.append(entry)
        except Exception:
            logger.exception("the journal is missing an entry: %s", entry)


def _counters(metrics: dict[str, Any]) -> str:
    """The counters of a report, such as ", step 160"."""
    return "".join(f", {name} {metrics[name]:g}" for name in COUNTERS if is_count(metrics.get(name)))
