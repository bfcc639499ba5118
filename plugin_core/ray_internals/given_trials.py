"""A search algorithm of Ray Tune that runs trials with given configs, in their order.

Ray's own means would not do: `points_to_evaluate` compares each value with the space and takes no value that is a mapping
whole, and population based training works with no searcher but the generator of variants.
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
    """Its state is saved and restored like that of the generator of variants."""

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
