"""A retraining: train, evaluate against the champion, promote if it is better."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from plugin_core.specs.evaluate import Evaluation
from plugin_core.specs.fields import Flag, Text
from plugin_core.specs.references import check_model_name
from plugin_core.specs.step import Bundle, StepSpec, in_sum, largest
from plugin_core.specs.train import TrainSpec


def _registry(uri: str | None) -> str | None:
    from plugin_core.specs.references import check_registry

    return check_registry(uri) if uri is not None else None


class RetrainSpec(StepSpec):
    """Retrain `model`, evaluate the new checkpoint and the champion on the same data, and point `alias` to the new one if
    it meets the thresholds and `must_beat` of `evaluate`.

    The `run_config`, `limits`, `runtime_env` and `tracking` of `train` and `evaluate` are ignored in favour of the
    retraining's own, except `train.run_config.checkpoint_config` and `failure_config`.
    """

    resources_field = "train.scaling_config"
    kind: Literal["retrain"] = "retrain"
    model: Text = Field(description="its name in the registry")
    alias: Text = Field("champion", description="what points to the best version")
    registry: Annotated[Text | None, AfterValidator(_registry)] = Field(
        None, description="a path, a URI or `mlflow`; None: `_models/` beside the run"
    )
    train: TrainSpec = Field(
        description="the training; of its `run_config`, only `checkpoint_config` and `failure_config` count"
    )
    evaluate: Evaluation = Field(description="how the new checkpoint is judged; needs `thresholds` or `must_beat`")
    warm_start: Flag = Field(True, description="start from the champion's checkpoint")
    skip_unchanged: Flag = Field(True, description="do nothing if the champion was trained on the same data")
    on_overlap: Literal["wait", "skip", "fail"] = Field(
        "wait", description="while another retraining of the model is running"
    )
    allow_older: Flag = Field(False, description="run even if this repeats a retraining that is older than the champion")

    def bundles(self) -> list[Bundle]:
        # the parts run one after the other
        return max(self.train.bundles(), self.evaluate.bundles(), key=lambda bundles: in_sum(bundles).get("CPU", 0.0))

    def need(self) -> dict[str, float]:
        return largest(self.train.need(), self.evaluate.need())

    def at_most(self) -> dict[str, float]:
        return largest(self.train.at_most(), self.evaluate.at_most())

    @model_validator(mode="after")
    def _gate(self) -> Self:
        check_model_name("model", self.model)
        check_model_name("alias", self.alias)
        if not (self.evaluate.thresholds or self.evaluate.must_beat):
            raise ValueError(
                "evaluate.must_beat: missing; a retraining needs thresholds or must_beat to decide what is better"
            )
        return self
