"""A Ray Tune search algorithm that runs trials with given configs, in order.

Ray's own means do not suffice: `points_to_evaluate` compares each value with the space and does not take a mapping as
one value, and population based training works with no searcher except the variant generator.
"""

from __future__ import annotations

import copy
from typing import Any

from ray.tune.search.basic_variant import BasicVariantGenerator, _TrialIterator


class _Given(_TrialIterator):
    def __next__(self) -> Any:
        if not self.points_to_evaluate:
            raise StopIteration
        spec = {**copy.deepcopy(self.unresolved_spec), "config": self.points_to_evaluate.pop(0)}
        return self.create_trial({}, spec)


class GivenTrials(BasicVariantGenerator):
    """Its state is saved and restored like that of the variant generator."""

    def __init__(self, configs: list[dict[str, Any]], max_concurrent: int):
        super().__init__(max_concurrent=max_concurrent)
        self._given = configs

    def add_configurations(self, experiments: Any) -> None:
        super().add_configurations(experiments)
        made: Any = self._iterators[0]
        given = _Given(self._uuid_prefix, len(self._given), made.unresolved_spec, points_to_evaluate=[*self._given])
        self._iterators: list[Any] = [given]
        self._trial_generator = iter(given)
        self._total_samples = len(self._given)
