"""Whether metrics are good enough: against bounds, and against those of another checkpoint. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError
from plugin_core.specs.evaluate import KNOWN_MODES
from plugin_core.specs.json_values import is_number

if TYPE_CHECKING:
    from plugin_core.specs.evaluate import Comparison, EvaluateSpec, Threshold


def verdict(spec: EvaluateSpec, metrics: Mapping[str, Any], compared: Mapping[str, Any] | None) -> dict[str, str]:
    """What is not good enough: for each such metric the values and by how much it failed. Empty: passed.

    Raises SpecError where a threshold or comparison names a metric that there is not.
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
    """Why a metric breaks its threshold; empty when it does not. What is no number breaks it."""
    if not is_number(value):
        return f"{value!r} is no number"
    if bound.min is not None and value < bound.min:
        return f"{value:g} < min {bound.min:g} (by {bound.min - value:.3g})"
    if bound.max is not None and value > bound.max:
        return f"{value:g} > max {bound.max:g} (by {value - bound.max:.3g})"
    return ""


def compare(value: Any, other: Any, mode: str, comparison: Comparison) -> str:
    """Why a metric does not beat the other; empty when it does. The other being no number, any number beats it."""
    if not is_number(value):
        return f"{value!r} is no number"
    if not is_number(other):
        return ""
    short = other - value if mode == "max" else value - other
    if short <= comparison.tolerance:
        return ""
    sign, word = ("<", "worse") if short > 0 else (">", "better")
    sign = sign if mode == "max" else {"<": ">", ">": "<"}[sign]
    return f"{value:g} {sign} {other:g} of the other (by {abs(short):.3g} {word}; tolerance {comparison.tolerance:g})"


def known(metrics: Mapping[str, Any], field: str, names: Iterable[str]) -> None:
    """Raise SpecError where `names` holds one that the metrics do not."""
    for name in names:
        if name not in metrics:
            close = difflib.get_close_matches(name, metrics, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise SpecError(
                f"{field}: got {name!r}, which the evaluation does not return; expected {', '.join(metrics)}{hint}"
            )
