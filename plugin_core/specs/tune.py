"""The spec of a hyperparameter search."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from plugin_core.errors import SpecError
from plugin_core.specs import search_space
from plugin_core.specs.base import Model
from plugin_core.specs.fields import Count, Name, Number, Plain, Seconds
from plugin_core.specs.json_values import TEXT, also
from plugin_core.specs.step import Bundle, StepSpec, largest
from plugin_core.specs.train import TrainSpec

#: Ray Tune's schedulers and searchers, by the names that `create_scheduler` and `create_searcher` accept; "asha" is our
#: alias for "async_hyperband".
SCHEDULERS = ("fifo", "asha", "async_hyperband", "median_stopping_rule", "hyperband", "pbt", "pb2")
SEARCHERS = ("random", "optuna", "hyperopt", "bayesopt", "ax", "hebo", "nevergrad", "zoopt")

#: The most trials in one search; each is a Ray Train run.
MAX_TRIALS = 1_000_000


class _Named(Model):
    """`type` of a Ray Tune class; `options`: its keyword arguments."""

    model_config = ConfigDict(json_schema_extra=also(TEXT, {"type": "object", "required": ["type"]}))

    type: Name = Field(description="the name")
    options: Plain = Field({}, description="its own; they may also stand beside `type`")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """Accept the type's name alone, and options beside `type`."""
        if isinstance(value, str):
            return {"type": value}
        if isinstance(value, dict) and "type" in value:
            options = {name: item for name, item in value.items() if name not in ("type", "options")}
            given = value.get("options", {})
            if isinstance(given, dict):
                return {"type": value["type"], "options": search_space.as_data({**given, **options})}
        return value


class SchedulerConfig(_Named):
    """Decides which trials continue: "asha", "median_stopping_rule", "hyperband", or "pbt", whose `hyperparam_mutations`
    are a space like `param_space`, in which a list of values is a choice."""

    type: Literal[SCHEDULERS] = Field(description="asha, pbt and the like; the name alone will do")  # type: ignore[valid-type]

    @property
    def mutations(self) -> str | None:
        """The option that says what a population's trials change; None for other schedulers."""
        return {"pbt": "hyperparam_mutations", "pb2": "hyperparam_bounds"}.get(self.type)


class SearchConfig(_Named):
    """Decides which trials are started: "random" (including grids), "optuna", or Ray's others, each in its own package."""

    type: Literal[SEARCHERS] = Field(description="random (grids too), optuna and the like; the name alone will do")  # type: ignore[valid-type]


class TuneSpec(StepSpec):
    """A search over `param_space` (see `search_space`) for the best `metric`. Each trial is a Ray Train run of `train`.
    `tracking` applies to the search and its trials; that of `train` is ignored."""

    resources_field = "train.scaling_config"
    kind: Literal["tune"] = "tune"
    train: TrainSpec = Field(description="the training that each trial runs")
    param_space: Plain = Field(description="by field of `train`: what varies")
    metric: Name = Field(description="the reported metric to optimise")
    mode: Literal["max", "min"] = Field(description="whether a higher or a lower metric is better")
    num_samples: Annotated[Count, Field(le=MAX_TRIALS)] = Field(
        1, description="samples of the space; each runs the whole grid"
    )
    scheduler: SchedulerConfig | None = Field(None, description="which trials go on")
    search_alg: SearchConfig | None = Field(None, description="which trials are started; None: random")
    max_concurrent_trials: Count | None = Field(None, description="None: as many as fit on the cluster")
    time_budget_s: Seconds | None = Field(None, description="over all attempts; then no trial starts and running ones end")
    stop: dict[Name, Number] = Field(
        {}, description="metric → value that ends a trial (`training_iteration` counts reports)"
    )

    @model_validator(mode="before")
    @classmethod
    def _plain_space(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("param_space"), dict):
            return value
        return {**value, "param_space": search_space.as_data(value["param_space"])}

    @model_validator(mode="after")
    def _space(self) -> Self:
        search_space.check(self.param_space)
        searcher = self.search_alg.type if self.search_alg else "random"
        if searcher != "random" and search_space.grid_size(self.param_space) > 1:
            raise ValueError(f"param_space: got a grid_search with search_alg {searcher!r}; expected search_alg 'random'")
        self._check_ends("param_space", self.param_space)
        if self.scheduler is not None and (name := self.scheduler.mutations) is not None:
            self._check_mutations(self.scheduler, name)
        return self

    def _check_mutations(self, scheduler: SchedulerConfig, name: str) -> None:
        field, mutations = f"scheduler.{name}", scheduler.options.get(name)
        if not mutations:
            raise ValueError(f"{field}: missing; {scheduler.type!r} needs it")
        search_space.check_mutations(field, mutations, bounds=scheduler.type == "pb2")
        self._check_ends(field, search_space.lists_as_choices(mutations))

    def _check_ends(self, field: str, space: dict[str, Any]) -> None:
        for path, chosen in search_space.ends(space):
            try:
                self.trial_spec(chosen)
            except SpecError as exc:
                raise ValueError(f"{field}.{path}: a trial may get an invalid TrainSpec: {exc.message}") from None

    def trial_spec(self, chosen: dict[str, Any]) -> TrainSpec:
        """`train` with a trial's values from the space. Raises SpecError if that is invalid."""
        return TrainSpec(**search_space.merged(self.train.model_dump(), chosen))

    def bundles(self) -> list[Bundle]:
        return self.train.bundles()  # for one trial

    def need(self) -> dict[str, float]:
        # all concurrent trials: a search that resumes starts as many as it did before
        trials = min(self.max_concurrent_trials or self.trials, self.trials)
        ends = [self.trial_spec(chosen).at_most() for _, chosen in search_space.ends(self.param_space)]
        return {name: trials * amount for name, amount in largest(self.train.at_most(), *ends).items()}

    @property
    def trials(self) -> int:
        """The planned number of trials."""
        return self.num_samples * search_space.grid_size(self.param_space)
