"""The spec of a hyperparameter search."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from plugin_core.errors import SpecError
from plugin_core.specs import search_space, space_checks
from plugin_core.specs.base import Model
from plugin_core.specs.common import DatasetConfig
from plugin_core.specs.fields import Count, Name, Number, Plain, Seconds
from plugin_core.specs.json_values import TEXT, also
from plugin_core.specs.resume_search import ResumeSearch
from plugin_core.specs.space_functions import Options, Space, functions, with_datasets_as_mappings
from plugin_core.specs.step import Bundle, StepSpec, in_sum, largest
from plugin_core.specs.train import TrainSpec

#: Ray Tune's schedulers and searchers, by the names that `create_scheduler` and `create_searcher` accept; "asha" is our
#: alias for "async_hyperband".
SCHEDULERS = ("fifo", "asha", "async_hyperband", "median_stopping_rule", "hyperband", "pbt", "pb2")
SEARCHERS = ("random", "optuna", "hyperopt", "bayesopt", "ax", "hebo", "nevergrad", "zoopt")

#: The most trials in one search; each is a Ray Train run.
MAX_TRIALS = 1_000_000


class _Named(Model):
    """A Ray Tune class: `type` names it, `options` are its keyword arguments."""

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
    are a space like `param_space` in which a list of values is a choice."""

    type: Literal[SCHEDULERS] = Field(description="asha, pbt and the like; the name alone will do")  # type: ignore[valid-type]
    options: Options = Field({}, description="its own; they may also stand beside `type`")

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
    param_space: Space = Field(description="by field of `train`: what varies")
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
    resume_from: ResumeSearch | None = Field(
        None, description="a finished search whose trials train further, or to which trials are added"
    )

    @model_validator(mode="before")
    @classmethod
    def _plain_space(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("param_space"), dict):
            return value
        return {**value, "param_space": with_datasets_as_mappings(search_space.as_data(value["param_space"]))}

    @model_validator(mode="after")
    def _space(self) -> Self:
        space_checks.check(self.param_space)
        searcher = self.search_alg.type if self.search_alg else "random"
        if searcher != "random" and search_space.grid_size(self.param_space) > 1:
            raise ValueError(f"param_space: got a grid_search with search_alg {searcher!r}; expected search_alg 'random'")
        self._check_ends("param_space", self.param_space)
        if self.scheduler is not None and (name := self.scheduler.mutations) is not None:
            self._check_mutations(self.scheduler, name)
        return self

    @model_validator(mode="after")
    def _tier(self) -> Self:
        if self.train.run_config.checkpoint_config.local_tier is not None:
            raise ValueError(
                "train.run_config.checkpoint_config.local_tier: got it in a search; expected it in a training alone: a"
                " trial's checkpoints go to storage, where other trials find them"
            )
        return self

    @model_validator(mode="after")
    def _policy(self) -> Self:
        if self.train.failure_policy is not None:
            try:
                self.train.failure_policy.check_trials()
            except SpecError as exc:
                raise ValueError(f"train.{exc.message}") from None
        return self

    @model_validator(mode="after")
    def _samples_nothing(self) -> Self:
        if self.resume_from is None or self.resume_from.trials == "none":
            return self
        given = {"num_samples": self.num_samples if self.num_samples > 1 else None, "search_alg": self.search_alg}
        for name, value in given.items():
            if value is not None:
                why = f"with resume_from.trials {self.resume_from.trials!r}, which samples nothing"
                raise ValueError(f"{name}: got {getattr(value, 'type', value)!r} {why}; expected it left out")
        return self

    def _check_mutations(self, scheduler: SchedulerConfig, name: str) -> None:
        field, mutations = f"scheduler.{name}", scheduler.options.get(name)
        if not mutations:
            raise ValueError(f"{field}: missing; {scheduler.type!r} needs it")
        space_checks.check_mutations(field, mutations, bounds=scheduler.type == "pb2")
        self._check_ends(field, search_space.lists_as_choices(mutations))

    def _check_ends(self, field: str, space: dict[str, Any]) -> None:
        ends = list(search_space.ends(space))
        for path, value in ends:
            try:
                self.trial_spec(self._beside_others(value, space))
            except SpecError as exc:
                # name the sampler whose value is wrong even alone
                blamed = next((path for path, value in ends if not self._is_valid(value)), path)
                raise ValueError(f"{field}.{blamed}: a trial may get an invalid TrainSpec: {exc.message}") from None

    def _beside_others(self, value: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
        """A trial's values: this one, and the first that each of the other samplers may choose."""
        others = search_space.merged(search_space.first(self.param_space), search_space.first(space), space)
        found: dict[str, Any] = search_space.merged(others, value, space)
        return found

    def _is_valid(self, value: dict[str, Any]) -> bool:
        try:
            self.trial_spec(value)
        except SpecError:
            return False
        return True

    def trial_spec(self, chosen: dict[str, Any]) -> TrainSpec:
        """`train` with a trial's values from the space. Raises SpecError if that is invalid."""
        return TrainSpec(**search_space.merged(self.train.model_dump(), chosen, self._whole_space))

    @property
    def _mutations(self) -> tuple[str, dict[str, Any]]:
        """The field of the scheduler that says what a population's trials change, and its space, which may be empty."""
        name = self.scheduler.mutations if self.scheduler is not None else None
        given = self.scheduler.options.get(name) if self.scheduler is not None and name is not None else None
        space = search_space.lists_as_choices(given) if isinstance(given, dict) else {}
        return f"scheduler.{name}", space

    @property
    def _whole_space(self) -> dict[str, Any]:
        found: dict[str, Any] = search_space.merged(self._mutations[1], self.param_space, self.param_space)
        return found

    def more_functions(self) -> dict[str, Any]:
        field, mutations = self._mutations
        return dict([*functions(self.param_space, "param_space"), *functions(mutations, field)])

    def more_datasets(self) -> dict[str, DatasetConfig]:
        found: dict[str, DatasetConfig] = {}
        for trial in self.variants() if "datasets" in self.param_space else ():
            for name, config in trial.datasets.items():
                if config not in (self.train.datasets.get(name), *found.values()):
                    found[f"param_space.datasets.{name}.{len(found)}"] = config
        return found

    def variants(self) -> list[TrainSpec]:
        """The trainings of trials with an extreme value of the space."""
        return [
            self.trial_spec(self._beside_others(value, self.param_space))
            for _, value in search_space.ends(self.param_space)
        ]

    def bundles(self) -> list[Bundle]:
        # the trial that takes most: every trial that may be sampled must fit
        candidates = [trial.bundles() for trial in self.variants()] or [self.train.bundles()]
        return max(candidates, key=lambda bundles: [in_sum(bundles).get(name, 0.0) for name in ("GPU", "CPU")])

    def need(self) -> dict[str, float]:
        # all concurrent trials: a search that resumes starts as many as it did before
        trials = min(self.max_concurrent_trials or MAX_TRIALS, self.trials or MAX_TRIALS)
        most = largest(self.train.at_most(), *(trial.at_most() for trial in self.variants()))
        return {name: trials * amount for name, amount in most.items()}

    @property
    def trials(self) -> int | None:
        """The planned number of trials; None: as many as the finished search has."""
        if self.resume_from is not None and self.resume_from.trials != "none":
            return 1 if self.resume_from.trials == "best" else None
        return self.num_samples * search_space.grid_size(self.param_space)
