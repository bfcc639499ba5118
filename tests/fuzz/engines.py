"""Arguments that are an engine's own, beside the spec's fields: of Airflow's operators and of Prefect's tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.values import Given
from tests.fuzz.ways import by_airflow, by_prefect, refusing

TRAINING: dict[str, Any] = {"framework": "python", "train_loop_per_worker": "devtools.steps:counting_loop"}
_TEXT = [
    Given("none", None, "left out"),
    Given("a number", 5),
    Given("true", True),
    Given("a list", ["a"]),
    Given("a mapping", {"a": 1}),
    Given("NUL", "a\0b"),
    Given("a line", "a\nb"),
    Given("surrogate", "\ud800"),
]
_NAME = [
    *_TEXT,
    Given("a path", "../other"),
    Given("a slash", "a/b"),
    Given("hidden", ".step"),
    Given("long", "a" * 5000),
    Given("fine", "nightly-1", "a name"),
]
_PLACE = [
    *_TEXT,
    Given("code", "custom://x?filesystem=os:system", "nothing is opened yet: an installation may allow it"),
    Given("a scheme", "ftp://host/runs"),
    Given("a secret", "s3://bucket/runs?secret_key=canary"),
    Given("fine", "/runs", "a folder"),
]
_CLUSTER = [
    Given("none", None, "the embedded head"),
    Given("an address", "http://head:8265"),
    Given("a number", 5),
    Given("a mapping", {"address": "http://head:8265"}),
    Given("an empty list", []),
    Given("a list of numbers", [1]),
]
#: A key is made a name: what a name must not have becomes `_`, and a hash follows.
_KEY = [
    Given(each.name, each.value, each.reason or "made a name") if isinstance(each.value, str) else each for each in _NAME
]
_AIRFLOW = {"run_name": _NAME, "storage_path": _PLACE}
_PREFECT = {"key": [*_KEY, Given("blank", " ")], "cluster": _CLUSTER}


def engine_cases() -> Iterator[Case]:
    for name, values in _AIRFLOW.items():
        for given in values:
            call = functools.partial(by_airflow, "train", **TRAINING, run_config={"name": "run"}, **{name: given.value})
            yield _case("airflow", name, given, call)
    for name, values in _PREFECT.items():
        for given in values:
            call = functools.partial(by_prefect, "train", TRAINING, **{name: given.value}, in_flow=True)
            yield _case("prefect", name, given, call)


def _case(way: str, name: str, given: Given, call: Callable[[], Any]) -> Case:
    return Case(
        way, f"{name}: {given.name}", functools.partial(refusing, call), given.wrong, (name, "run_config"), given.reason
    )
