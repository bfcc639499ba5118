"""A function that cannot be called with what its field passes is refused before anything is submitted."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from plugin_core import BatchInferSpec, EvaluateSpec, RunConfig, TrainSpec
from plugin_core.errors import SpecError


def loop(config: Any) -> None: ...


def of_two(config: Any, rate: float) -> None: ...


def only_named(*, config: Any) -> None: ...


def without() -> None: ...


def rows(count: int, seed: int = 0) -> None: ...


class Predictor:
    def __init__(self, checkpoint: Any, scale: float = 1.0): ...

    def __call__(self, batch: Any) -> Any: ...


class WithoutCheckpoint:
    def __call__(self, batch: Any) -> Any: ...


def adds_an_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(config: Any) -> Any:
        return function(config, 0.1)

    return wrapper


def train(train_loop: Any = loop, **fields: Any) -> TrainSpec:
    return TrainSpec(train_loop_per_worker=train_loop, **fields)


def predict(predictor: Any, **config: Any) -> BatchInferSpec:
    return BatchInferSpec(predictor=predictor, checkpoint="/checkpoint", dataset="/rows.parquet", config=config)


def judge(evaluate: Any) -> EvaluateSpec:
    return EvaluateSpec(evaluate=evaluate, checkpoint="/checkpoint")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a loop of two arguments": (
        lambda: train(of_two),
        "train_loop_per_worker: got of_two(config, rate); expected one that is called with config",
    ),
    "a loop of a named argument": (lambda: train(only_named), "train_loop_per_worker: got only_named(config); expected"),
    "a method, by its class": (
        lambda: train(Predictor.__call__),
        "train_loop_per_worker: got Predictor.__call__(self, batch); expected one that is called with config",
    ),
    "an evaluation of four": (
        lambda: judge(lambda a, b, c, d: {}),
        "(a, b, c, d); expected one that is called with checkpoint, dataset, config",
    ),
    "a preprocessor that needs one": (
        lambda: train(preprocessor=loop),
        "preprocessor: got loop(config); expected one that is called with no arguments",
    ),
    "a callback's class that needs one": (
        lambda: train(run_config=RunConfig(callbacks=[Predictor])),
        "callbacks.0: got Predictor(checkpoint, scale); expected one that is called with no arguments",
    ),
    "a dataset without its argument": (
        lambda: train(datasets={"train": rows}),
        "datasets.train.kwargs: got none; expected the arguments of rows(count, seed) (missing a required",
    ),
    "a dataset's misspelt argument": (
        lambda: train(datasets={"train": {"function": rows, "kwargs": {"count": 1, "sead": 2}}}),
        "datasets.train.kwargs: got count, sead; expected the arguments of rows(count, seed) (got an unexpected",
    ),
    "a predictor's misspelt argument": (
        lambda: predict(Predictor, scal=2.0),
        "config: got scal; expected the arguments of Predictor(checkpoint, scale), after checkpoint (got an unexpected",
    ),
    "a predictor without a checkpoint": (
        lambda: predict(WithoutCheckpoint),
        "config: got none; expected the arguments of WithoutCheckpoint(), after checkpoint (too many",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_that_needs_other_arguments_is_refused(case: str) -> None:
    make, words = REFUSED[case]
    with pytest.raises(SpecError) as caught:
        make()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: train(without),
        lambda: train(functools.partial(of_two, rate=0.1)),
        lambda: train(lambda *arguments: None),
        lambda: train(lambda config, rate=0.1: None),
        lambda: train(adds_an_argument(of_two)),
        lambda: train("package.module:loop"),
        lambda: train(print),
        lambda: train(datasets={"train": {"function": rows, "kwargs": {"count": 1}}}),
        lambda: train(datasets={"train": without}, preprocessor=without),
        lambda: judge(lambda checkpoint: {}),
        lambda: judge(without),
        lambda: predict(Predictor),
        lambda: predict(Predictor, scale=2.0),
    ],
)
def test_a_function_that_takes_fewer_arguments_or_adds_its_own_is_accepted(make: Callable[[], Any]) -> None:
    assert make().kind in ("train", "evaluate", "batch_infer")
