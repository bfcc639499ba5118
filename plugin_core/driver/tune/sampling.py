"""Which trials Ray Tune runs: sampled from the space, suggested by a searcher, or those of a finished search."""

from __future__ import annotations

import logging
from typing import Any

from plugin_core.driver.tune.algorithms import make_searcher
from plugin_core.driver.tune.resumed import Resumed
from plugin_core.specs import TuneSpec, search_space
from plugin_core.specs.json_values import is_number

logger = logging.getLogger(__name__)


def trials_for_tuner(spec: TuneSpec, at_once: int, taken: Resumed | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tuner's `param_space`, and the arguments of its TuneConfig that say which trials it runs.

    A searcher that can be told about trials run elsewhere (Optuna, HEBO) is told about those of the finished search.
    """
    from ray.tune.search import Searcher
    from ray.tune.search.basic_variant import BasicVariantGenerator

    from plugin_core.ray_internals.given_trials import GivenTrials

    if taken is not None and taken.given is not None:
        return {}, {"search_alg": GivenTrials(taken.given, at_once), "num_samples": len(taken.given)}
    space = search_space.to_ray(spec.param_space)
    searcher = make_searcher(spec.search_alg, len(taken.kept) if taken is not None else 0)
    arguments = {"search_alg": searcher, "num_samples": spec.num_samples, "max_concurrent_trials": at_once}
    if isinstance(searcher, BasicVariantGenerator):
        searcher.max_concurrent = at_once  # Ray limits only searchers
        return space, {**arguments, "max_concurrent_trials": None}
    if taken is None or searcher is None:
        return space, arguments
    if type(searcher).add_evaluated_point is Searcher.add_evaluated_point:
        assert spec.search_alg is not None
        logger.warning("search_alg: %r cannot be told of the trials that are kept", spec.search_alg.type)
        return space, arguments
    # the searcher must know its space before it can be told about trials, and Ray does not give it one twice
    searcher.set_search_properties(spec.metric, spec.mode, space)
    told = _tell(searcher, spec, taken.kept)
    logger.info("search_alg: told of %d of the %d trials that are kept", told, len(taken.kept))
    return search_space.constants(spec.param_space), arguments


def _tell(searcher: Any, spec: TuneSpec, rows: list[dict[str, Any]]) -> int:
    """Tell the searcher about the trials that are in its space; returns how many."""
    told = 0
    for row in rows:
        values, metric = search_space.values_by_path(spec.param_space, row["config"]), row.get(spec.metric)
        if values is None or not is_number(metric):
            continue
        try:
            searcher.add_evaluated_point(values, metric)
        except ValueError as exc:  # outside a space that has become smaller
            logger.info("search_alg: not told of %s: %s", row["run"], exc)
        else:
            told += 1
    return told
