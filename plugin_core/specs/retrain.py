"""A retraining: train, evaluate against the champion, promote if it is better."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from plugin_core.specs.evaluate import Evaluation
from plugin_core.specs.fields import Flag, Text
from plugin_core.specs.references import check_model_name
from plugin_core.specs.step import Bundle, StepSpec, in_sum
from plugin_core.specs.train import TrainSpec


def _registry(uri: str | None) -> str | None:
    from plugin_core.specs.references import check_registry

    return check_registry(uri) if uri is not None else None


class RetrainSpec(StepSpec):
    """One step that trains `model` anew, evaluates the new checkpoint and the champion on the same data, and lets `alias`
    stand for the new one if it is good enough: within the thresholds of `evaluate`, and as good as its `must_beat` asks.

    `registry`: as in `promote`; default: `_models/` beside the run. `warm_start`: begin with the champion's checkpoint.
    `skip_unchanged`: do nothing where the champion was trained on the same data (see `DatasetConfig.version`).
    `on_overlap`: what to do while another retraining of the model runs: "wait" for it, "skip" this one, or "fail",
    which the engine may try again. The `run_config`, `limits`, `runtime_env` and `tracking` of the parts count not, those
    of the retraining do; but for `train.run_config.checkpoint_config` and `failure_config`.
    """

    resources_field = "train.scaling_config"
    kind: Literal["retrain"] = "retrain"
    model: Text
    alias: Text = "champion"
    registry: Annotated[Text | None, AfterValidator(_registry)] = None
    train: TrainSpec
    evaluate: Evaluation
    warm_start: Flag = True
    skip_unchanged: Flag = True
    on_overlap: Literal["wait", "skip", "fail"] = "wait"

    def bundles(self) -> list[Bundle]:
        # the parts run one after the other
        return max(self.train.bundles(), self.evaluate.bundles(), key=lambda bundles: in_sum(bundles).get("CPU", 0.0))

    @model_validator(mode="after")
    def _gate(self) -> Self:
        check_model_name("model", self.model)
        check_model_name("alias", self.alias)
        if not (self.evaluate.thresholds or self.evaluate.must_beat):
            raise ValueError(
                "evaluate.must_beat: missing; a retraining needs thresholds or must_beat to know what is better"
            )
        return self
