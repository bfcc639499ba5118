"""A result in words: one function for each kind of step (see `step_kinds`). The first line says how it ended."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from plugin_core.specs.json_values import is_number

#: Most metrics that a line names; the result has all.
MOST = 12
#: Most characters of a metric in a line.
CHARACTERS = 100


def any_step(spec: Any, result: Any) -> list[str]:
    """For a kind of step without words of its own."""
    return [f"finished: {metrics(result.metrics)}" if result.metrics else "finished"]


def train(spec: Any, result: Any) -> list[str]:
    reports = f"{result.reports} report{'s' * (result.reports != 1)}"
    lines = [f"trained: {reports}" + (f"; last {metrics(result.metrics)}" if result.metrics else "")]
    score = spec.run_config.checkpoint_config.checkpoint_score_attribute
    if result.best_checkpoint is not None:
        value = f" with {score}={result.best_score:.4g}" if result.best_score is not None else f" by {score}"
        lines.append(f"best checkpoint{value}: {result.best_checkpoint.uri}")
    if result.checkpoint is not None and result.checkpoint != result.best_checkpoint:
        lines.append(f"last checkpoint: {result.checkpoint.uri}")
    return lines


def tune(spec: Any, result: Any) -> list[str]:
    best = result.metrics.get(spec.metric)
    value = f" with {spec.metric}={best:.4g}" if is_number(best) else ""
    trials = ", ".join(f"{count} {status}" for status, count in result.trials.items() if count)
    lines = [f"found: the best trial{value}: {metrics(result.best_config) or 'as given'}", f"trials: {trials or 'none'}"]
    lines += [f"checkpoint: {result.checkpoint.uri}"] if result.checkpoint is not None else []
    return [*lines, f"table of trials: {result.table_markdown or result.table}", *_plots(result)]


def _plots(result: Any) -> list[str]:
    return [f"plot: {uri}" for uri in result.plots.values()]


def evaluate(spec: Any, result: Any) -> list[str]:
    if not result.passed:
        why = "; ".join(f"{name} {reason}" for name, reason in result.failed.items())
        return [f"failed: {why}", f"metrics: {metrics(result.metrics)}"]
    met = _met(spec, result)
    if not met:
        return [f"evaluated: {metrics(result.metrics)}"]
    return [f"passed: {'; '.join(met)}", f"metrics: {metrics(result.metrics)}"]


def _met(spec: Any, result: Any) -> list[str]:
    """The conditions that the metrics met."""
    found = []
    for name, bound in spec.thresholds.items():
        value = result.metrics.get(name)
        for sign, limit in (("≥", bound.min), ("≤", bound.max)):
            if limit is not None and is_number(value):
                found.append(f"{name} {value:.4g} {sign} {limit:g}")
    for name in spec.must_beat:
        value, other = result.metrics.get(name), result.compared_metrics.get(name)
        if is_number(value) and is_number(other):
            found.append(f"{name} {value:.4g} against {other:.4g} of the other")
    return found


def batch_infer(spec: Any, result: Any) -> list[str]:
    return [f"predicted: {result.rows} row{'s' * (result.rows != 1)}", f"output ({result.format}): {result.output}"]


def ray_job(spec: Any, result: Any) -> list[str]:
    if spec.command is not None:
        return ["finished: the command exited with 0"]
    if result.value_uri is not None:
        return ["finished", f"returned: {result.value_uri}"]
    returned = metrics(result.value) if isinstance(result.value, Mapping) else _short(result.value)
    return ["finished" if result.value is None else f"finished: returned {returned or 'an empty mapping'}"]


def retrain(spec: Any, result: Any) -> list[str]:
    version = f"version {result.champion}"
    reason = result.reason.replace("the other's", f"{version}'s")
    if result.outcome == "promoted":
        lines = [f"promoted: {reason}"]
    else:
        begins = "not promoted" if result.outcome == "kept" else "skipped"
        stays = f"; {version} stays the {spec.alias}" if result.champion else ""
        lines = [f"{begins}: {reason}{stays}"]
    if result.metrics:
        lines.append(f"metrics: {metrics(result.metrics)}")
    return lines + ([f"checkpoint: {result.checkpoint.uri}"] if result.checkpoint is not None else [])


def promoted(version: Any, alias: str) -> str:
    """What a promotion did, in words."""
    given = f", {metrics(version.metrics)}" if version.metrics else ""
    return f"promoted: version {version.version} of {version.name} is the {alias}{given}; checkpoint: {version.checkpoint}"


def metrics(found: Mapping[str, Any]) -> str:
    """Metrics in one line, the first `MOST` of them."""
    named = [f"{name}={_short(value)}" for name, value in itertools.islice(found.items(), MOST)]
    return " ".join(named) + (f" … ({len(found) - MOST} more)" if len(found) > MOST else "")


def _short(value: Any) -> str:
    """A metric may be any text."""
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
