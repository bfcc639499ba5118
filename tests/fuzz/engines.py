"""Arguments that are an engine's own, beside the spec's fields: of Airflow's operators and of Prefect's tasks."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tests.fuzz.case import Case, Refused
from tests.fuzz.values import Given
from tests.fuzz.ways import refusing

TRAINING = {
    "framework": "python",
    "train_loop_per_worker": "devtools.steps:counting_loop",
    "run_config": {"name": "run"},
}
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
    for way, call, arguments in (("airflow", _by_airflow, _AIRFLOW), ("prefect", _by_prefect, _PREFECT)):
        for name, values in arguments.items():
            for given in values:
                yield _case(way, name, given, functools.partial(call, name, given.value))


def _case(way: str, name: str, given: Given, call: Callable[[], Any]) -> Case:
    return Case(
        way, f"{name}: {given.name}", functools.partial(refusing, call), given.wrong, (name, "run_config"), given.reason
    )


def _by_airflow(name: str, value: Any) -> None:
    from airflow.providers.common.compat.sdk import DAG, AirflowFailException

    from airflow_provider.base import as_airflow_errors
    from airflow_provider.hooks import Place
    from airflow_provider.operators import RayTrainOperator
    from plugin_core.clusters.base import LocalCluster

    task = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0)
    try:
        with DAG("d"):
            operator = RayTrainOperator(task_id="t", **TRAINING, **{name: value})
        operator.render_template_fields({})
        with as_airflow_errors():
            operator.build_spec(task, Place(LocalCluster()))
    except AirflowFailException as exc:
        raise Refused(str(exc)) from None


def _by_prefect(name: str, value: Any) -> None:
    from plugin_core.specs import TrainSpec
    from prefect_integration.identity import Call, named
    from prefect_integration.step import Step

    given = {"cluster": None, "key": None, name: value}
    unnamed = {name: value for name, value in TRAINING.items() if name != "run_config"}
    step = Step(unnamed, TrainSpec, given["cluster"], given["key"], logging.getLogger("fuzz"))
    run = uuid4()
    named(step._given, given["key"], Call((run,), (), (1,), "flow", run, "train-1"))
