"""The base class of all step specs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from plugin_core.specs.base import Model
from plugin_core.specs.common import DatasetConfig, Limits, RunConfig
from plugin_core.specs.runtime_env import RuntimeEnv
from plugin_core.specs.tracking import Tracking

#: Identical processes: their number, and the resources of each (CPUs and GPUs; Ray's units for the rest).
Bundle = tuple[int, dict[str, float]]


#: Ray Data reads on CPUs that the workers leave free; with none left it waits forever.
READING: Bundle = (1, {"CPU": 1.0})


def pool_bundles(actors: int, num_cpus: float, num_gpus: float) -> list[Bundle]:
    """A pool of actors, and a task that reads for them."""
    return [(actors, {"CPU": num_cpus, "GPU": num_gpus}), READING]


def low_and_high(number: int | tuple[int, int]) -> tuple[int, int]:
    return number if isinstance(number, tuple) else (number, number)


def in_sum(bundles: list[Bundle]) -> dict[str, float]:
    """The total resources of these processes."""
    names = {name for _, bundle in bundles for name in bundle}
    return {name: sum(count * bundle.get(name, 0.0) for count, bundle in bundles) for name in names}


def largest(*needs: dict[str, float]) -> dict[str, float]:
    """The resources that satisfy each of these needs, one after the other."""
    return {name: max(need.get(name, 0.0) for need in needs) for name in sorted({name for need in needs for name in need})}


class StepSpec(Model):
    """The fields of every step. A subclass with a `kind` is a kind of step (see `step_kinds`)."""

    #: the field that sets the step's resources, for messages
    resources_field: ClassVar[str] = "num_cpus/num_gpus"
    if TYPE_CHECKING:
        kind: str

    run_config: RunConfig = Field(
        RunConfig(), description="the run's name and place, its checkpoints, how many failures it survives"
    )
    limits: Limits = Field(Limits(), description="time limits and attempts")
    runtime_env: RuntimeEnv = Field(
        {}, description="Ray's `runtime_env` for the job; kept in the run directory, so not for secrets"
    )
    tracking: Tracking = Field([], description="experiment trackers: names, or mappings with `type` and options")

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def with_name(self, name: str, storage_path: str | None = None) -> Self:
        """This spec with `name`, and with `storage_path` unless it has its own."""
        given = {field: getattr(self.run_config, field) for field in self.run_config.model_fields_set}
        update = {"name": name, "storage_path": self.run_config.storage_path or storage_path}
        return self.model_copy(update={"run_config": {**given, **update}})

    def with_runtime_env(self, base: dict[str, Any]) -> Self:
        """This spec with a cluster's `runtime_env` as defaults; the spec's own fields and `env_vars` win."""
        merged = {**base, **self.runtime_env}
        if variables := {**base.get("env_vars", {}), **self.runtime_env.get("env_vars", {})}:
            merged["env_vars"] = variables
        return self.model_copy(update={"runtime_env": merged})

    def bundles(self) -> list[Bundle]:
        """The minimum set of processes that must run at once."""
        raise NotImplementedError

    def need(self) -> dict[str, float]:
        """What the step must have all at once before it starts; see `driver/admission.py`."""
        return in_sum(self.bundles())

    def at_most(self) -> dict[str, float]:
        """The most that it ever uses: more than `need` for a range of workers or actors."""
        return self.need()

    def more_functions(self) -> dict[str, Any]:
        """The user's functions outside fields of type `Function`, by their path."""
        return {}

    def more_datasets(self) -> dict[str, DatasetConfig]:
        """The datasets outside the fields `datasets` and `dataset`, by a name for messages."""
        return {}

    def needed_columns(self, field: str) -> dict[str, list[str]]:
        """The columns that the step needs from the dataset in `field`, by the spec fields that name them."""
        return {}

    def needed_rows(self, dataset: DatasetConfig) -> int:
        """The minimum number of rows that the step needs from one of its own datasets."""
        return 0
