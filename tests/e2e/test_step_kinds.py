"""A kind of step that another package declares, in `step_kind/`, runs from the CLI, from Prefect and from Airflow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from plugin_core.errors import SpecError
from plugin_core.specs import parse_spec
from plugin_core.specs.results import StepResult
from plugin_core.specs.step import Bundle, StepSpec
from plugin_core.specs.step_kinds import StepKind, declare

PACKAGE = Path(__file__).parent / "step_kind"
pytestmark = pytest.mark.usefixtures("head")


def even(row: dict[str, Any]) -> bool:
    return bool(row["n"] % 2 == 0)


@pytest.fixture
def fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The fields of a step of that kind, which is installed here and on the cluster."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    rows = tmp_path / "rows.csv"
    rows.write_text("n\n" + "".join(f"{n}\n" for n in range(9)))
    return {
        "kind": "row_count",
        "dataset": str(rows),
        "runtime_env": {"env_vars": {"PYTHONPATH": str(PACKAGE)}},
        "run_config": {"storage_path": str(tmp_path / "runs")},
    }


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, fields: dict[str, Any]) -> None:
    spec = {**fields, "keep": "tests.e2e.test_step_kinds:even"}
    spec["run_config"] = {**spec["run_config"], "name": "rows"}
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "plugin_core.cli", "run", str(tmp_path / "rows.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"] == {"rows": 5}


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_api")
def test_from_prefect(fields: dict[str, Any]) -> None:
    from prefect import flow

    from prefect_integration import run_step

    @flow
    def count() -> StepResult:
        return run_step({**fields, "keep": even})

    result = count()
    assert (result.kind, result.metrics) == ("row_count", {"rows": 5})


@pytest.mark.slow
def test_from_airflow(fields: dict[str, Any]) -> None:
    pytest.importorskip("airflow")
    from airflow_provider.operators import RayStepOperator
    from tests.support.airflow_tasks import task_instance

    operator = RayStepOperator(task_id="count", spec={**fields, "keep": even}, ray_conn_id=None, deferrable=False)
    assert operator.execute({"ti": task_instance()})["metrics"] == {"rows": 5}


def test_bad_input_of_that_kind_is_refused_like_any_other(fields: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="keep: missing; RowCountSpec needs it"):
        parse_spec(fields)
    with pytest.raises(SpecError, match=r"kind: got 'row_cuont'; expected one of train, .*row_count"):
        parse_spec({**fields, "kind": "row_cuont"})


class CopySpec(StepSpec):
    kind: Literal["copy"] = "copy"


class WholeCopySpec(CopySpec):
    def bundles(self) -> list[Bundle]:
        return []


class CopyResult(StepResult):
    kind: Literal["copy"] = "copy"


class BytesResult(CopyResult):
    size: int


@pytest.mark.parametrize(
    ("spec", "result", "run", "words"),
    [
        (StepSpec, CopyResult, "a:b", "got kind None in StepSpec and 'copy' in CopyResult"),
        (WholeCopySpec, StepResult, "a:b", "got kind 'copy' in WholeCopySpec and None in StepResult"),
        (CopySpec, CopyResult, "a:b", "CopySpec.bundles: missing"),
        (WholeCopySpec, CopyResult, "a", "StepKind.run: got 'a'; expected 'package.module:function'"),
        (WholeCopySpec, BytesResult, "a:b", "BytesResult.played: missing; expected a class method that fills size"),
    ],
)
def test_an_incomplete_declaration_fails_where_it_is_made(
    spec: type[StepSpec], result: type[StepResult], run: str, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        declare(StepKind(spec, result, run))


def test_a_name_is_declared_once() -> None:
    declare(StepKind(WholeCopySpec, CopyResult, "a:b"))
    declare(StepKind(WholeCopySpec, CopyResult, "a:b"))
    with pytest.raises(ValueError, match="kind: 'copy' is declared twice"):
        declare(StepKind(WholeCopySpec, CopyResult, "another:module"))
