"""The rules of a `failure_policy` as fields of a spec, and the losses that one of them watches."""

import math
from typing import Any

import numpy
import pytest
import torch

from plugin_core.driver.train.finite import check_finite
from plugin_core.errors import NanLossError, SpecError
from plugin_core.specs import TrainSpec, TuneSpec
from plugin_core.specs.failure_policy import changed
from plugin_core.specs.parse import parse_spec

CONFIG = {"batch_size": 64, "lr": 0.1}


def spec(**given: Any) -> TrainSpec:
    run = {"name": "run", "checkpoint_config": {"num_to_keep": 2}}
    loop = "devtools.steps:counting_loop"
    return TrainSpec(framework="python", train_loop_per_worker=loop, train_loop_config=CONFIG, run_config=run, **given)


@pytest.mark.parametrize(("policy", "sentence"), [
    ({"worker_lots": {}}, "failure_policy.worker_lots: unknown field"),
    ({"hang": {"action": "pray"}}, "failure_policy.hang.action: got 'pray'; expected 'restart' or 'give_up'"),
    ({"hang": {"action": "give_up", "back": 1}},
     "failure_policy.hang.back: got it with action 'give_up'; expected it with 'restart'"),
    ({"nan_loss": {"back": 2}}, "failure_policy.nan_loss.back: got 2 with num_to_keep 2; expected less"),
    ({"gpu_oom": {"change": {"batch": 3}}},
     "failure_policy.gpu_oom.change: got 'batch', which train_loop_config does not have; expected batch_size, lr"),
    ({"gpu_oom": {"change": {"lr": {"times": -1}}}}, "change.lr: got {'times': -1}; expected {'times': a number above 0}"),
    ({"gpu_oom": {"at_most": -2}}, "failure_policy.gpu_oom.at_most: got -2"),
])  # fmt: skip
def test_a_wrong_rule_is_refused_in_a_sentence(policy: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(failure_policy=policy)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_policy_is_the_same_after_a_way_through_a_file() -> None:
    given = spec(failure_policy={"hang": {"action": "give_up"}, "nan_loss": {"back": 1, "change": {"lr": {"times": 0.5}}}})
    assert parse_spec(given.to_json()) == given


def test_only_a_number_can_be_multiplied() -> None:
    with pytest.raises(SpecError, match="expected a number in train_loop_config to multiply"):
        TrainSpec(
            framework="python",
            train_loop_per_worker="devtools.steps:counting_loop",
            train_loop_config={"model": "small"},
            failure_policy={"gpu_oom": {"change": {"model": {"times": 0.5}}}},
        )


def test_a_search_takes_only_rules_that_its_trials_can_follow() -> None:
    space = {"train_loop_config": {"lr": {"grid_search": [0.1, 0.2]}}}
    more = {"param_space": space, "metric": "loss", "mode": "min"}
    assert TuneSpec(train=spec(failure_policy={"worker_lost": {"at_most": 5}}), **more)
    with pytest.raises(SpecError, match=r"^train\.failure_policy\.gpu_oom\.change: got it in a search; expected it in a"):
        TuneSpec(train=spec(failure_policy={"gpu_oom": {"change": {"batch_size": 8}}}), **more)


def test_changes_keep_the_type_of_a_number() -> None:
    assert changed(CONFIG, {"batch_size": {"times": 0.3}, "lr": {"times": 0.5}}) == {"batch_size": 19, "lr": 0.05}
    assert changed({"n": 1}, {"n": {"times": 0.5}}) == {}
    assert changed({"n": 3}, {"n": {"times": 2}}) == {"n": 6}


# ---- losses


@pytest.mark.parametrize("value", [math.nan, math.inf, numpy.float32("nan"), torch.tensor(math.nan), "nan"])
def test_a_loss_that_is_no_finite_number_is_noticed(value: Any) -> None:
    if isinstance(value, str):
        check_finite({"loss": value}, [])  # text is not a number
        return
    for metrics in ({"loss": value}, {"val_loss": value}, {"train": {"loss": value}}):
        with pytest.raises(NanLossError, match=r"the reported (loss|val_loss|train/loss) is (nan|inf)"):
            check_finite(metrics, [])
    check_finite({"accuracy": value}, [])
    with pytest.raises(NanLossError, match="the reported accuracy is"):
        check_finite({"accuracy": value}, ["accuracy"])
    check_finite({"loss": value}, ["accuracy"])
