"""The entry points: each mutation of a spec goes through those that can carry it."""

from __future__ import annotations

import datetime
import enum
import functools
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import yaml

from tests.fuzz.case import Case, Refused
from tests.fuzz.specs import Mutation


def refusing(call: Callable[[], Any]) -> None:
    """Our errors are refusals, as a user sees them; any other error is passed on."""
    from plugin_core.errors import RayTrainWorkflowsError

    try:
        call()
    except RayTrainWorkflowsError as exc:
        raise Refused(exc.message) from None


def _case(way: str, mutation: Mutation, call: Callable[[], Any]) -> Case:
    parts = [[part for part in field.split(".") if not part.isdigit()] or [field] for field in mutation.culprits]
    named = tuple(path[-1] for path in parts)
    if way in ("yaml", "json"):
        named += ("spec file",)  # what cannot be read as data has no fields yet
    return Case(way, mutation.name, functools.partial(refusing, call), mutation.wrong, named, mutation.reason)


WAYS = ("kwargs", "yaml", "json", "airflow", "prefect")


def spec_cases(way: str, mutations: Iterable[Mutation]) -> Iterator[Case]:
    """As keyword arguments of Python, as YAML, as JSON, to an Airflow operator, to a Prefect task."""
    for mutation in mutations:
        match way:
            case "kwargs":
                yield _case(way, mutation, functools.partial(_by_kwargs, mutation.data))
            case "yaml" if _can_be_written(mutation.data, _YAML):
                yield _case(way, mutation, functools.partial(_by_yaml, mutation.data))
            case "json" if _can_be_written(mutation.data, _JSON):
                yield _case(way, mutation, functools.partial(_by_json, mutation.data))
            case "airflow":
                yield _case(way, mutation, functools.partial(by_airflow, mutation.kind, spec=mutation.data))
            case "prefect":
                yield _case(way, mutation, functools.partial(by_prefect, mutation.kind, mutation.data))


def _by_kwargs(data: dict[Any, Any]) -> None:
    from plugin_core.specs import parse_spec

    spec = parse_spec(data)
    json.dumps(spec.to_json(), allow_nan=False)  # what is accepted can be kept


def _by_file(text: str, ending: str) -> None:
    from plugin_core.specs import load_spec

    handle, path = tempfile.mkstemp(ending)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
        load_spec(path)
    finally:
        os.unlink(path)


_OPERATORS = {
    "train": "RayTrainOperator",
    "evaluate": "RayEvaluateOperator",
    "batch_infer": "RayBatchInferOperator",
    "tune": "RayTuneOperator",
    "retrain": "RayRetrainOperator",
    "ray_job": "RayJobOperator",
}
_TASKS = ("train", "evaluate", "batch_infer", "tune", "retrain", "ray_job")


def by_airflow(kind: str, **arguments: Any) -> None:
    """The operator's arguments, rendered as Airflow renders them, made a spec as the task does it."""
    from airflow.providers.common.compat.sdk import DAG, AirflowFailException

    from airflow_provider import operators
    from airflow_provider.base import as_airflow_errors
    from airflow_provider.hooks import Place
    from plugin_core.clusters.base import LocalCluster

    task = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, max_tries=0)
    try:
        with DAG("d"):
            operator = getattr(operators, _OPERATORS[kind])(task_id="t", **arguments)
        operator.render_template_fields({})
        with as_airflow_errors():
            operator.build_spec(task, Place(LocalCluster()))
    except AirflowFailException as exc:
        raise Refused(str(exc)) from None


def by_prefect(kind: str, data: dict[Any, Any], cluster: Any = None, key: Any = None, *, in_flow: bool = False) -> None:
    """`in_flow`: called in a flow run, where a step needs no name of its own."""
    from plugin_core.specs import BatchInferSpec, EvaluateSpec, RayJobSpec, RetrainSpec, TrainSpec, TuneSpec
    from prefect_integration.identity import Call, named
    from prefect_integration.step import Step

    accepted = dict(zip(_TASKS, (TrainSpec, EvaluateSpec, BatchInferSpec, TuneSpec, RetrainSpec, RayJobSpec), strict=True))
    step = Step(data, accepted[kind], cluster, key, logging.getLogger("fuzz"))
    run = uuid4()
    named(step._given, key, Call((run,), (), (1,), "flow", run, "train-1") if in_flow else Call())


_JSON = (dict, list, str, int, float, type(None))
_YAML = (*_JSON, bytes, datetime.date)


def _can_be_written(data: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a file can hold it as it is; what only a hand writes (deep nesting, many digits) is in `files`."""
    seen: set[int] = set()
    left = [(data, 0)]
    while left:
        part, depth = left.pop()
        if not isinstance(part, kinds) or isinstance(part, enum.Enum) or depth > 60:
            return False
        if (isinstance(part, int) and part.bit_length() > 10_000) or (isinstance(part, str) and len(part) > 50_000):
            return False
        if id(part) in seen:
            if kinds is _JSON:
                return False
            continue
        if isinstance(part, (dict, list)):
            seen.add(id(part))
        if isinstance(part, dict):
            if kinds is _JSON and not all(isinstance(key, str) for key in part):
                return False
            left += [(item, depth + 1) for item in (*part, *part.values())]
        elif isinstance(part, list):
            left += [(item, depth + 1) for item in part]
    return True


def _by_yaml(data: Any) -> None:
    _by_file(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), ".yaml")


def _by_json(data: Any) -> None:
    _by_file(json.dumps(data), ".json")
