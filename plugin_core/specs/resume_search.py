"""What a search takes over from a finished one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from plugin_core.specs.base import Model
from plugin_core.specs.common import Place
from plugin_core.specs.json_values import RESULT, TEXT, also
from plugin_core.specs.results import StepResult


def _run_of(value: Any) -> Any:
    """Accept a search's result, or its dict, as its run directory."""
    if isinstance(value, StepResult):
        value = value.model_dump()
    if not isinstance(value, dict):
        return value
    if value.get("kind") != "tune":
        raise ValueError(f"got a result of kind {value.get('kind')!r}; expected a search's")
    run = value.get("run")
    if not isinstance(run, dict):
        raise ValueError("the tune result given names no run")
    return run.get("uri")


class ResumeSearch(Model):
    """A finished search that another one continues. Its run directory stays unchanged, except for pins on the
    checkpoints that are needed."""

    model_config = ConfigDict(json_schema_extra=also(TEXT, RESULT))

    search: Annotated[Place, BeforeValidator(_run_of)] = Field(
        description="the run directory of a finished search; its result will do"
    )
    trials: Literal["none", "best", "all"] = Field(
        "none",
        description="which of its trials train further, from their own last checkpoint and with their own values; none:"
        " they are kept, count for the best, and `num_samples` more are searched",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """Accept just the search."""
        alone = isinstance(value, (str, StepResult)) or (isinstance(value, dict) and "kind" in value)
        return {"search": value} if alone else value
