"""Decides what follows a failure of a training's workers, by its cause and the spec's `failure_policy`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plugin_core.driver.train import restarts
from plugin_core.driver.train.oom import OomWatch
from plugin_core.errors import (
    DamagedCheckpointError,
    GaveUpError,
    InfrastructureError,
    RayTrainWorkflowsError,
    RestartError,
)
from plugin_core.errors.classify import classify
from plugin_core.ray_internals.controller import Process
from plugin_core.runs.recovery import Recovery
from plugin_core.specs.failure_policy import MAX_BACK, FailurePolicy, FailureRule, changed

#: How many of the newest checkpoints are remembered; no rule goes further back.
CHECKPOINTS = MAX_BACK + 1


@dataclass(frozen=True)
class Verdict:
    """`error`: ends the attempt; None: only the workers are replaced. `entry`: what the journal records, including what
    the next attempt has to follow (see `Recovery`). `resumes`: the checkpoint to resume from, "" for none."""

    why: str
    error: RayTrainWorkflowsError | None
    entry: dict[str, Any]
    resumes: str = ""


@dataclass
class Judge:
    """`max_failures`: how many failures without a rule replace the workers; -1: no limit. `config`: the train function's.
    `there`: lists the names in the run directory. `answers`: whether a node is alive. `checkpoints`: the last ones
    registered so far, in order. `workers`: the processes of the current worker group, by rank. `newest`: the newest
    checkpoint on the workers' nodes, if they keep any."""

    max_failures: int = 0
    policy: FailurePolicy = field(default_factory=FailurePolicy)
    recovery: Recovery = field(default_factory=Recovery)
    config: dict[str, Any] = field(default_factory=dict)
    there: Callable[[], list[str]] = list
    oom: OomWatch | None = None
    answers: Callable[[str], bool] = bool
    checkpoints: deque[str] = field(default_factory=lambda: deque(maxlen=CHECKPOINTS))
    workers: dict[int, Process] = field(default_factory=dict)
    newest: str = ""
    _failures: int = 0
    _noted: set[int] = field(default_factory=set)
    _last: tuple[BaseException, Verdict] | None = None

    def begin(self, workers: dict[int, Process]) -> None:
        """A worker group has started."""
        self.workers, self._noted = workers, set()

    def note_kills(self, statuses: Mapping[int, Any]) -> None:
        """Take in how many processes the kernel had killed on each node when its workers began."""
        if self.oom is None or len(self._noted) == len(self.workers):
            return
        for rank, status in statuses.items():
            if rank in self.workers and (counted := getattr(status, "oom_kills", None)) is not None:
                self.oom.begin(self.workers[rank].node, counted)
                self._noted.add(rank)

    def verdict(self, error: BaseException, final: bool = False) -> Verdict:
        """What follows an error of Ray Train's controller; the same for the same error. `final`: Ray gives up."""
        if self._last is None or self._last[0] is not error:
            self._last = error, self._judge(error, final)
        return self._last[1]

    def _judge(self, error: BaseException, final: bool) -> Verdict:
        failure = restarts.diagnose(error, self.workers, self.oom, self.answers)
        ours = classify(error)
        rule = None if isinstance(ours, (RestartError, GaveUpError)) else self.policy.rule(failure.cause)
        entry: dict[str, Any] = {"cause": failure.cause, **({"node": failure.node} if failure.node else {})}
        if isinstance(ours, DamagedCheckpointError) and (rule is None or rule.action == "restart"):
            verdict = self._without_damaged(ours, failure, entry)
        elif rule is not None and not final:
            verdict = self._by_rule(rule, failure, ours, entry)
        else:
            verdict = self._without_rule(error, failure, ours, entry, final)
        if verdict.error is not None and not isinstance(verdict.error, (RestartError, GaveUpError)):
            verdict.error.cause = failure.cause
        self.recovery.add(verdict.entry)
        return verdict

    def _without_rule(
        self,
        error: BaseException,
        failure: restarts.Failure,
        ours: RayTrainWorkflowsError,
        entry: dict[str, Any],
        final: bool,
    ) -> Verdict:
        counts = restarts.counts(error)
        self._failures += counts
        spent = counts and 0 <= self.max_failures < self._failures
        if final or spent or not isinstance(ours, InfrastructureError):
            return Verdict(failure.why, ours, entry)
        numbers = {"failure": self._failures, "most": self.max_failures} if counts else {}
        return Verdict(failure.why, None, {**entry, **numbers}, self.latest)

    def _without_damaged(
        self, damaged: DamagedCheckpointError, failure: restarts.Failure, entry: dict[str, Any]
    ) -> Verdict:
        """Drop the damaged checkpoint: workers that resume from it again would meet the same damage."""
        before = [name for name in self._left() if name != damaged.checkpoint]
        entry |= {"dropped": [damaged.checkpoint]}
        return self._restart(f"{failure.why}; restarts without it", failure, entry, before[-1] if before else "")

    def _by_rule(
        self, rule: FailureRule, failure: restarts.Failure, ours: RayTrainWorkflowsError, entry: dict[str, Any]
    ) -> Verdict:
        field_of, before = f"failure_policy.{failure.cause}", self.recovery.restarts[failure.cause]
        if rule.action == "give_up":
            return self._give_up(failure, ours, entry, f"{field_of} says to give up")
        if 0 <= rule.at_most <= before:
            return self._give_up(failure, ours, entry, f"{field_of}.at_most allows no more than {rule.at_most} restarts")
        change = changed({**self.config, **self.recovery.changed}, rule.change)
        if rule.change and not change:
            return self._give_up(failure, ours, entry, f"{field_of}.change changes nothing any more")
        entry |= {"by_rule": True, "failure": before + 1, "most": rule.at_most}
        said = []
        if change:
            entry["changed"] = change
            said.append("with " + ", ".join(f"{name}={value!r}" for name, value in change.items()))
        resumes = self.latest
        if rule.back is not None:
            dropped, resumes = self._back(rule.back)
            entry |= {"dropped": dropped} if dropped else {}
            said += [f"without the checkpoints {', '.join(dropped)}"] if dropped else []
        if self._is_to_be_excluded(rule, failure):
            entry["excluded"] = failure.node
            said.append(f"without the node {failure.node[:12]}")
        if not said:
            return Verdict(failure.why, None, entry, resumes)
        return self._restart(f"{failure.why}; {field_of}: restarts {' and '.join(said)}", failure, entry, resumes)

    @staticmethod
    def _restart(told: str, failure: restarts.Failure, entry: dict[str, Any], resumes: str) -> Verdict:
        stop = RestartError(told)
        stop.cause = failure.cause
        return Verdict(told, stop, entry, resumes)

    def _give_up(
        self, failure: restarts.Failure, ours: RayTrainWorkflowsError, entry: dict[str, Any], because: str
    ) -> Verdict:
        """Errors that no engine retries stay unchanged."""
        why = f"{failure.why}; {because}"
        error = ours
        if ours.retryable:
            error = GaveUpError(why, ours.details)
            error.cause = failure.cause
        return Verdict(why, error, entry)

    @property
    def latest(self) -> str:
        """The checkpoint that workers would resume from; "" for none."""
        return self.newest or (self.checkpoints[-1] if self.checkpoints else "")

    def _back(self, number: int) -> tuple[list[str], str]:
        """The newest `number` of the checkpoints that exist, and the one before them."""
        left = self._left()
        return left[-number:], left[-number - 1] if len(left) > number else ""

    def _left(self) -> list[str]:
        """The checkpoints that still exist, in order."""
        there = set(self.there())
        return [name for name in self.checkpoints if name in there]

    def _is_to_be_excluded(self, rule: FailureRule, failure: restarts.Failure) -> bool:
        if rule.exclude_node_after is None or not failure.node or failure.node in self.recovery.excluded:
            return False
        return self.recovery.on_node[failure.cause, failure.node] + 1 >= rule.exclude_node_after
