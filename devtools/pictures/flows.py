"""The flows that are photographed: `python -m devtools.pictures.flows NAME STORAGE`. It exits with 0 even if one fails."""

import sys
from pathlib import Path
from typing import Any

from prefect import flow

from devtools.pictures.terminals import evaluation, training
from example_flows.digits import digits
from plugin_core import RunConfig
from plugin_core.specs.parse import parse_spec
from prefect_integration import evaluate, train

#: Enough epochs to leave time for a picture and a kill; an accuracy that no model reaches.
LONG, TOO_MUCH = 60, 0.999
#: A training whose loop raises, and what its exception says.
WRONG = {
    "framework": "python",
    "train_loop_per_worker": "devtools.steps:counting_loop",
    "train_loop_config": {"epochs": 3, "raise_at": 1},
}
MISTAKE = "the data of epoch 1 is bad"


def spec_of(given: dict[str, Any], storage: str) -> Any:
    return parse_spec({"kind": "train", **given, "run_config": RunConfig(storage_path=storage)})


@flow(name="killed")
def killed(storage: str) -> None:
    train(spec_of(training(LONG), storage), key="killed")


@flow(name="gate")
def gate(storage: str) -> None:
    trained = train(spec_of(training(3), storage))
    judge = evaluation(Path(storage), TOO_MUCH)
    evaluate(spec_of({**judge, "checkpoint": trained.checkpoint}, storage))


@flow(name="wrong")
def wrong_flow(storage: str) -> None:
    train(spec_of(WRONG, storage))


FLOWS = {"digits": digits, "killed": killed, "gate": gate, "wrong": wrong_flow}

if __name__ == "__main__":
    FLOWS[sys.argv[1]](sys.argv[2], return_state=True)
