"""Checks metrics against bounds and against another checkpoint's metrics. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import did_you_mean
from plugin_core.specs.evaluate import KNOWN_MODES
from plugin_core.specs.json_values import is_number

if TYPE_CHECKING:
    from plugin_core.specs.evaluate import Comparison, EvaluateSpec, Threshold


def verdict(spec: EvaluateSpec, metrics: Mapping[str, Any], compared: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the failed metrics: for each, the values and by how much it failed. Empty: passed.

    Raises SpecError if a threshold or comparison names a metric that does not exist.
    """
    known(metrics, "thresholds", spec.thresholds)
    known(metrics, "must_beat", spec.must_beat)
    failed = {name: why for name, bound in spec.thresholds.items() if (why := judge(metrics[name], bound))}
    if compared is not None:
        known(compared, "compare_to", spec.must_beat)
        for name, comparison in spec.must_beat.items():
            mode = comparison.mode or KNOWN_MODES[name]
            if why := compare(metrics[name], compared[name], mode, comparison):
                failed[name] = f"{failed[name]}; {why}" if name in failed else why
    return failed


def judge(value: Any, bound: Threshold) -> str:
    """Return why a metric breaks its threshold; "" if it does not. A value that is not a number breaks it."""
    if not is_number(value):
        return f"{value!r} is not a number"
    if bound.min is not None and value < bound.min:
        return f"{value:g} < min {bound.min:g} (by {bound.min - value:.3g})"
    if bound.max is not None and value > bound.max:
        return f"{value:g} > max {bound.max:g} (by {value - bound.max:.3g})"
    return ""


def compare(value: Any, other: Any, mode: str, comparison: Comparison) -> str:
    """Return why a metric does not beat the other; "" if it does. Any number beats a value that is not a number."""
    if not is_number(value):
        return f"{value!r} is not a number"
    if not is_number(other):
        return ""
    short = other - value if mode == "max" else value - other
    if short <= comparison.tolerance:
        return ""
    sign, word = ("<", "worse") if short > 0 else (">", "better")
    sign = sign if mode == "max" else {"<": ">", ">": "<"}[sign]
    return f"{value:g} {sign} the other's {other:g} (by {abs(short):.3g} {word}; tolerance {comparison.tolerance:g})"


def known(metrics: Mapping[str, Any], field: str, names: Iterable[str]) -> None:
    """Raise SpecError if one of `names` is not among the metrics."""
    for name in names:
        if name not in metrics:
            raise SpecError(
                f"{field}: got {name!r}, which the evaluation does not return; expected one of"
                f" {', '.join(metrics)}{did_you_mean(name, metrics)}"
            )
