"""How checkpoints are validated while the training goes on."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, model_validator

from plugin_core.specs.base import Model
from plugin_core.specs.fields import Amount, Name, Plain, Seconds, Whole
from plugin_core.specs.function_field import Function
from plugin_core.specs.json_values import TEXT, also


class ValidationConfig(Model):
    """Validation of checkpoints during the training (`ray.train.ValidationConfig`), for those that the loop reports
    with `ray.train.report(…, validation=True)`, one at a time. Short form: just the function."""

    model_config = ConfigDict(json_schema_extra=also(TEXT))

    fn: Function = Field(description="gets the `ray.train.Checkpoint` and `fn_kwargs`, and returns a dict of metrics")
    fn_kwargs: Plain = Field({}, description="its other arguments; those of a report's `ValidationTaskConfig` win")
    timeout_s: Seconds | None = Field(None, description="for one validation; None: no limit")
    resources: dict[Name, Amount] = Field({"CPU": 1.0}, description="what a validation holds beside the workers")
    max_retries: Whole = Field(3, description="how often a validation starts again when its process or node is lost")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"fn": value} if callable(value) or isinstance(value, str) else value
