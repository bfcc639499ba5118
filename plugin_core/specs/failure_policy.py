"""What a training does after a failure, by its cause."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs.base import Model
from plugin_core.specs.fields import Count, Names, Plain, Tries
from plugin_core.specs.json_values import is_number

MAX_BACK = 100
#: The key of a change that multiplies.
TIMES = "times"


class FailureRule(Model):
    """What follows a failure with a given cause. A restart with `back`, `change` or an excluded node is a new attempt,
    which `limits.max_attempts` does not count; any other restart only replaces the workers."""

    action: Literal["restart", "give_up"] = Field(
        "restart", description="`give_up`: the step fails, and no engine retries it"
    )
    at_most: Tries = Field(3, description="this many restarts in the whole run, then give up; -1: no limit")
    back: Annotated[Count, Field(le=MAX_BACK)] | None = Field(
        None, description="resume this many checkpoints before the latest one; the run drops those after it"
    )
    change: Plain = Field(
        {}, description="from then on, other values in `train_loop_config`; `{times: 0.5}` multiplies the present one"
    )
    exclude_node_after: Count | None = Field(
        None, description="do without a node once the cause has occurred on it this many times"
    )

    @model_validator(mode="after")
    def _restarts(self) -> Self:
        if self.action == "give_up":
            for field in ("at_most", "back", "change", "exclude_node_after"):
                if getattr(self, field) != type(self).model_fields[field].default:
                    raise ValueError(f"{field}: got it with action 'give_up'; expected it with 'restart'")
        for name, value in self.change.items():
            if isinstance(value, dict) and TIMES in value:
                factor = value[TIMES]
                if len(value) != 1 or not is_number(factor) or factor <= 0:
                    raise ValueError(f"change.{name}: got {shown(value)}; expected {{'times': a number above 0}}")
        return self

    @property
    def needs_attempt(self) -> bool:
        """Whether a restart under this rule may be a new attempt."""
        return any((self.back, self.change, self.exclude_node_after))


class NanLossRule(FailureRule):
    metrics: Names | None = Field(
        None, description="the reported metrics that must be finite numbers; None: `loss`, and those that end with `loss`"
    )


class FailurePolicy(Model):
    """Cause → what follows it. Without a rule, lost workers are replaced (`failure_config`), a lost attempt is followed
    by another one (`limits.max_attempts`), and your function's exception ends the step."""

    worker_lost: FailureRule | None = Field(None, description="a worker's process was killed, or crashed")
    node_lost: FailureRule | None = Field(None, description="a node died")
    preempted: FailureRule | None = Field(None, description="a node was taken away, as announced")
    host_oom: FailureRule | None = Field(
        None, description="a worker was killed by the kernel or by Ray because its node ran out of memory"
    )
    gpu_oom: FailureRule | None = Field(None, description="your function ran out of a GPU's memory")
    bad_node: FailureRule | None = Field(
        None, description="a worker met a hardware error, such as an uncorrectable ECC error"
    )
    hang: FailureRule | None = Field(
        None, description="the training stood still, with `hang_detection.action: restart` or `nccl_hang.action: fail`"
    )
    nan_loss: NanLossRule | None = Field(
        None, description="a reported loss is NaN or infinite; only watched with a rule, before its checkpoint is kept"
    )
    storage: FailureRule | None = Field(None, description="the storage failed, or is full")
    user_code: FailureRule | None = Field(None, description="your function raised an exception")
    infrastructure: FailureRule | None = Field(
        None, description="a connection broke, workers could not start, or the driver or the head was lost"
    )

    def rule(self, cause: str) -> FailureRule | None:
        found: FailureRule | None = getattr(self, cause) if cause in type(self).model_fields else None
        return found

    def check_trials(self) -> None:
        """Raise SpecError for a rule that a search's trials cannot follow: they have no attempts of their own."""
        for cause in type(self).model_fields:
            rule = self.rule(cause)
            if rule is not None and rule.needs_attempt:
                field = next(name for name in ("back", "change", "exclude_node_after") if getattr(rule, name))
                raise SpecError(
                    f"failure_policy.{cause}.{field}: got it in a search; expected it in a training, as a trial has no"
                    " attempts of its own"
                )


def policy_of(spec: Any) -> FailurePolicy | None:
    """A step's failure policy: that of its training, if it contains one."""
    found: FailurePolicy | None = getattr(getattr(spec, "train", spec), "failure_policy", None)
    return found


#: The documented causes.
CAUSES = tuple(FailurePolicy.model_fields)


def check_policy(policy: FailurePolicy, config: dict[str, Any], declared: bool, kept: int | None) -> None:
    """Raise ValueError if a rule does not fit its training. `config`: the `train_loop_config`; `declared`: whether
    `params` declare the training; `kept`: `num_to_keep`."""
    for cause in CAUSES:
        rule = policy.rule(cause)
        if rule is None:
            continue
        if rule.back is not None and kept is not None and rule.back >= kept:
            raise ValueError(
                f"failure_policy.{cause}.back: got {rule.back} with num_to_keep {kept}; expected less, or a larger"
                " run_config.checkpoint_config.num_to_keep"
            )
        if rule.change and declared:
            raise ValueError(f"failure_policy.{cause}.change: got it with params; expected a train_loop_per_worker")
        for name, value in rule.change.items():
            if name not in config:
                raise ValueError(
                    f"failure_policy.{cause}.change: got {shown(name)}, which train_loop_config does not have; expected"
                    f" {', '.join(sorted(config)) or 'one that it has'}"
                )
            if _factor(value) is not None and not is_number(config[name]):
                raise ValueError(
                    f"failure_policy.{cause}.change.{name}: got {shown(value)} for {shown(config[name])}; expected a number"
                    " in train_loop_config to multiply"
                )


def changed(config: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The new values of what a rule changes in a `train_loop_config`. Multiplied integers stay integers, at least 1."""
    made = {name: _changed(config.get(name), value) for name, value in change.items()}
    return {name: value for name, value in made.items() if name not in config or value != config[name]}


def _changed(old: Any, value: Any) -> Any:
    factor = _factor(value)
    if factor is None:
        return value
    return max(1, int(old * factor)) if isinstance(old, int) else old * factor


def _factor(value: Any) -> float | None:
    return value[TIMES] if isinstance(value, dict) and TIMES in value else None
