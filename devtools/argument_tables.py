"""python -m devtools.argument_tables: generate docs/arguments.md, the tables of all arguments, from the code.

A field's meaning is its `description`, an argument's its `:param` line in the docstring.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

import plugin_core
from airflow_provider import operators
from plugin_core.clusters import options
from plugin_core.clusters.base import LocalCluster
from plugin_core.clusters.fallback import FallbackCluster
from plugin_core.clusters.kuberay import KubeRayCluster
from plugin_core.clusters.kuberay_settings import KubeRaySettings
from plugin_core.engine import Cluster
from plugin_core.registry.api import promote
from plugin_core.specs import common, fields, function_field, ray_job, results, runtime_env, step_kinds, tracking
from plugin_core.specs.base import Model
from plugin_core.specs.evaluate import Evaluation
from plugin_core.specs.step import StepSpec
from prefect_integration import RayCluster, tasks

PAGE = Path(__file__).parents[1] / "docs" / "arguments.md"

#: Field type → its wording in the tables.
WORDS: list[tuple[Any, str]] = [
    (fields.Flag, "true or false"),
    (fields.Count, "whole number from 1"),
    (fields.Whole, "whole number from 0"),
    (fields.Seed, "whole number from 0"),
    (fields.Tries, "whole number from -1"),
    (fields.Processes, "whole number, or a pair [min, max]"),
    (fields.Number, "number"),
    (fields.Share, "number between 0 and 1"),
    (fields.Amount, "number from 0"),
    (fields.Seconds, "seconds"),
    (fields.Grace, "seconds"),
    (fields.Text, "text"),
    (fields.Name, "text"),
    (fields.Names, "list of text"),
    (fields.Plain, "mapping"),
    (runtime_env.RuntimeEnv, "mapping"),
    (function_field.Function, "[function](functions.md)"),
    (function_field.Makers, "list of [functions](functions.md)"),
    (function_field.Callbacks, "list of [callbacks](functions.md)"),
    (common.Place, "path or URI"),
    (common.Places, "list of these"),
    (common.Framework, "[framework](frameworks.md)"),
    (ray_job.Command, "list of text, or text"),
    (tracking.Tracking, "list of [trackers](#trackers)"),
    (results.CheckpointRef, "checkpoint"),
    (results.EvaluationRef, "evaluation's result"),
    (str, "text"),
    (bool, "true or false"),
    (Any, "any"),
    (tasks.Given, "spec"),
    (Cluster, "[cluster](clusters.md)"),
    (RayCluster, "[block](prefect.md#the-cluster)"),
    (options.Word, "text"),
    (options.Token, "text"),
    (options.Units, "whole number from 0"),
    (options.Memory, "text"),
    (options.Headers, "mapping"),
    (runtime_env.Variables, "mapping"),
    (KubeRaySettings, "[KubeRaySettings](#kuberaysettings)"),
    (Sequence[Any], "list of clusters"),
    (options.Files, "mapping"),
]

#: Fields of clusters that a step sets, not a user.
_SET_LATER = {"run_uri", "workflow"}

#: Names in signatures that their modules import only for type checkers.
_ONLY_FOR_TYPES = {"Clusters": Cluster | RayCluster | Sequence[Cluster | RayCluster] | None}

INTRODUCTION = """\
# Arguments

Every argument of the steps, of Airflow's operators and of Prefect's tasks. In Python a field is an argument, in YAML and in
Airflow a key; a nested spec may be a dict of its fields. `python -m devtools.argument_tables` writes this page.
"""


def page() -> str:
    return "\n".join(
        [INTRODUCTION, *_airflow(), *_prefect(), *_promotion(), *_steps(), *_parts(), *_trackers(), *_clusters()]
    )


def _airflow() -> Iterator[str]:
    yield "## Airflow\n"
    yield "| operator | takes the fields of |\n|---|---|"
    for name in operators.__all__:
        operator = getattr(operators, name)
        if issubclass(operator, operators.RayStepOperator) and operator is not operators.RayStepOperator:
            yield f"| `{name}` | {_link(operator.spec_class)} |"
    yield "\n`@task.ray_train` takes those of `RayTrainOperator`, in which `params` is called `model_params`;"
    yield "`@task.ray` those of `RayJobOperator`, in which `resources` is called `ray_resources`."
    yield "`RayStepOperator(spec=…)` runs any kind of step. All take the fields of [every step](#every-step), and:\n"
    own = (
        name for name in _parameters(operators.RayStepOperator.__init__) if name not in (*StepSpec.model_fields, "fields")
    )
    yield _arguments(operators.RayStepOperator.__init__, own, operators.RayStepOperator)


def _kinds() -> list[step_kinds.StepKind]:
    return [kind for kind in step_kinds._KINDS.values() if _is_ours(kind.spec)]


def _is_ours(cls: type[BaseModel]) -> bool:
    """Other packages may add their own."""
    return cls.__module__.startswith("plugin_core.")


def _prefect() -> Iterator[str]:
    yield "## Prefect\n"
    yield "| task | takes | returns |\n|---|---|---|"
    for kind in _kinds():
        assert hasattr(tasks, kind.name), kind.name
        yield f"| `{kind.name}`, awaited `a{kind.name}` | {_link(kind.spec)} | `{kind.result.__name__}` |"
    yield "| `run_step`, awaited `arun_step` | any of these | its result |\n"
    yield _arguments(tasks.run_step.fn, _parameters(tasks.run_step.fn))


def _promotion() -> Iterator[str]:
    yield "## Promotion\n"
    yield "`promote` of `plugin_core` and of Prefect, and `PromoteModelOperator` ([retraining](retraining.md)):\n"
    shared = set(_parameters(tasks.promote.fn)) & set(_parameters(operators.PromoteModelOperator.__init__))
    yield _arguments(promote, (name for name in _parameters(promote) if name in shared))


def _steps() -> Iterator[str]:
    yield f"## Every step\n\n{_fields(StepSpec, StepSpec.model_fields)}"
    yield f"## Steps\n\n### Evaluation\n\n{_fields(Evaluation, _own(Evaluation, StepSpec))}"
    for kind in _kinds():
        base = Evaluation if issubclass(kind.spec, Evaluation) else StepSpec
        beside = f"The fields of {_link(Evaluation)}, and:\n\n" if base is Evaluation else ""
        yield f"### {kind.spec.__name__}\n\n{beside}{_fields(kind.spec, _own(kind.spec, base))}"


def _parts() -> Iterator[str]:
    yield "## Parts of steps\n"
    specs: list[type[BaseModel]] = [StepSpec, Evaluation, *(kind.spec for kind in _kinds())]
    found: dict[type[BaseModel], None] = {}
    while specs:
        for part in _models(specs.pop(0)):
            if part not in found and not issubclass(part, (StepSpec, tracking.Tracker)):
                found[part] = None
                specs.append(part)
    for part in sorted(found, key=lambda part: part.__name__):
        yield f"### {part.__name__}\n\n{_fields(part, part.model_fields)}"


def _trackers() -> Iterator[str]:
    yield f"## Trackers\n\nEach has these options:\n\n{_fields(tracking.Tracker, tracking.Tracker.model_fields)}"
    for tracker in filter(_is_ours, tracking.Tracker.__subclasses__()):
        if own := [name for name in _own(tracker, tracking.Tracker) if name != "type"]:
            name = tracker.model_fields["type"].default
            yield f"### {tracker.__name__}\n\n`type: {name}`, and:\n\n{_fields(tracker, own)}"


def _clusters() -> Iterator[str]:
    yield "## Clusters\n"
    yield "Where a step runs, in Python ([clusters](clusters.md)). Connections and blocks have most of these options.\n"
    for cls in (LocalCluster, plugin_core.RayCluster, KubeRayCluster, KubeRaySettings, FallbackCluster):
        described = inspect.cleandoc(cls.__doc__ or "")
        yield f"### {cls.__name__}\n\n{described}\n"
        hints = get_type_hints(cls, include_extras=True)
        yield "| name | type | default |\n|---|---|---|"
        for option in dataclasses.fields(cls):
            if option.init and option.name not in _SET_LATER:
                if f"`{option.name}`" not in described:
                    raise ValueError(
                        f"{cls.__name__}.{option.name}: not in the class's docstring; expected its meaning there"
                    )
                yield f"| `{option.name}` | {_type(hints[option.name])} | {_default_of(option)} |"
        yield ""


def _default_of(option: dataclasses.Field[Any]) -> str:
    if option.default_factory is not dataclasses.MISSING:
        return f"`{option.default_factory()}`"
    return _default(option.default, option.default is dataclasses.MISSING)


# ---- tables


def _fields(cls: type[BaseModel], names: Iterable[str]) -> str:
    hints = get_type_hints(cls, include_extras=True)
    return _table(
        (name, _type(hints[name]), _default(field.get_default(), field.is_required()), field.description or "")
        for name in names
        if name != "kind"
        for field in [cls.model_fields[name]]
    )


def _arguments(function: Callable[..., Any], names: Iterable[str], documented: Any = None) -> str:
    """`documented`: the object whose docstring describes the arguments; by default the function."""
    meanings, hints = _meanings(documented or function), get_type_hints(function, localns=_ONLY_FOR_TYPES)
    parameters = inspect.signature(function).parameters
    return _table(
        (name, _type(hints[name]), _default(default, default is inspect.Parameter.empty), meanings.get(name, ""))
        for name in names
        for default in [parameters[name].default]
    )


def _table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = ["| name | type | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, meaning in rows:
        if not meaning:
            raise ValueError(f"{name}: has no meaning; expected a description of the field, or a :param line")
        lines.append(f"| `{name}` | {kind} | {default} | {meaning} |")
    return "\n".join([*lines, ""])


def _type(hint: Any) -> str:
    for known, words in WORDS:
        if hint is known or hint == known:
            return words
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:  # a known type with more metadata
        return _type(Annotated[args[:-1]] if len(args) > 2 else args[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(arg) for arg in args if arg is not NoneType))
    if origin is dict:
        return f"mapping, text to {_type(args[1])}" if args[1] is not Any else "mapping"
    if origin is Sequence:
        return f"list of {_type(args[0])}"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return _link(hint)
    raise TypeError(f"type: got {hint!r}; expected one in WORDS")


def _default(value: Any, required: bool) -> str:
    if required:
        return "required"
    return "–" if value is None or isinstance(value, Model) else f"`{value!r}`".replace("'", '"')


def _link(cls: type[BaseModel]) -> str:
    return f"[{cls.__name__}](#{cls.__name__.lower()})"


# ---- what is read


def _own(cls: type[BaseModel], base: type[BaseModel]) -> list[str]:
    return [name for name in cls.model_fields if name not in base.model_fields]


def _parameters(function: Callable[..., Any]) -> list[str]:
    found = inspect.signature(function).parameters.values()
    return [each.name for each in found if each.name != "self" and each.kind is not inspect.Parameter.VAR_KEYWORD]


def _meanings(documented: Any) -> dict[str, str]:
    """The `:param` lines of a docstring; each may have several names and lines."""
    found: dict[str, str] = {}
    for names, text in re.findall(
        r":param ([\w, ]+): (.+?)(?=\n:param|\n\n|\Z)", inspect.getdoc(documented) or "", re.DOTALL
    ):
        found |= dict.fromkeys(names.split(", "), " ".join(text.split()).rstrip("."))
    return found


def _models(cls: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The models among the types of a model's fields."""
    todo: list[Any] = [get_type_hints(cls, include_extras=True)[name] for name in cls.model_fields]
    while todo:
        hint = todo.pop(0)
        if isinstance(hint, type) and issubclass(hint, Model):
            yield hint
        todo += [arg for arg in get_args(hint) if not isinstance(arg, str)]


if __name__ == "__main__":
    PAGE.write_text(page())
