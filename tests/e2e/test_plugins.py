"""What another package, `example_plugin`, adds: built as a wheel, installed, used from Python, the CLI and both engines."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from plugin_core import LocalCluster, RunConfig, ScalingConfig, TrainSpec, get_model, promote, rollback, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import AliasMovedError, SpecError
from plugin_core.registry.api import open_registry
from plugin_core.runs.directory import RunDir
from plugin_core.specs import parse_spec
from plugin_core.specs.results import StepResult
from plugin_core.specs.step import Bundle, StepSpec
from plugin_core.specs.step_kinds import StepKind, declare
from plugin_core.storage.location import Location

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package's wheel is installed in."""
    folder = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(ROOT / "example_plugin", folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-compile", "--target", folder / "site", wheel], check=True)
    return folder / "site"


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(package))
    return package


def even(row: dict[str, Any]) -> bool:
    return bool(row["n"] % 2 == 0)


@pytest.fixture
def fields(tmp_path: Path, installed: Path) -> dict[str, Any]:
    """The fields of a step of that kind, which is installed here and on the cluster."""
    rows = tmp_path / "rows.csv"
    rows.write_text("n\n" + "".join(f"{n}\n" for n in range(9)))
    return {
        "kind": "row_count",
        "dataset": str(rows),
        "runtime_env": {"env_vars": {"PYTHONPATH": str(installed)}},
        "run_config": {"storage_path": str(tmp_path / "runs")},
    }


@pytest.mark.slow
@pytest.mark.usefixtures("head")
def test_a_step_kind_from_the_command_line(tmp_path: Path, fields: dict[str, Any], installed: Path) -> None:
    spec = {**fields, "keep": "tests.e2e.test_plugins:even"}
    spec["run_config"] = {**spec["run_config"], "name": "rows"}
    (tmp_path / "rows.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "plugin_core.cli", "run", str(tmp_path / "rows.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"] == {"rows": 5}


@pytest.mark.slow
@pytest.mark.usefixtures("head", "prefect_api")
def test_a_step_kind_from_prefect(fields: dict[str, Any]) -> None:
    from prefect import flow

    from prefect_integration import run_step

    @flow
    def count() -> StepResult:
        return run_step({**fields, "keep": even})

    result = count()
    assert (result.kind, result.metrics) == ("row_count", {"rows": 5})


@pytest.mark.slow
@pytest.mark.usefixtures("head")
def test_a_step_kind_from_airflow(fields: dict[str, Any]) -> None:
    pytest.importorskip("airflow")
    from airflow_provider.operators import RayStepOperator
    from tests.support.airflow_tasks import task_instance

    operator = RayStepOperator(task_id="count", spec={**fields, "keep": even}, ray_conn_id=None, deferrable=False)
    assert operator.execute({"ti": task_instance()})["metrics"] == {"rows": 5}


# ---- frameworks, trackers, storages and registries


def learning(config: dict[str, Any]) -> None:
    import numpy as np
    import ray.train

    from devtools.steps import restore, save

    for step in range((restore() or {"step": -1})["step"] + 1, 4):
        drawn = float(np.random.default_rng(config["seed"] + step).random())
        ray.train.report({"step": step, "drawn": drawn, "loss": 1 / (step + 1)}, save({"step": step}))


def training(storage: str, **fields: Any) -> dict[str, Any]:
    return {
        "framework": "numpy",
        "seed": 5,
        "tracking": [{"type": "lines", "file": "all.jsonl"}],
        "run_config": {"name": "learns", "storage_path": storage},
        **fields,
    }


def lines_of(run_uri: str) -> list[dict[str, Any]]:
    (attempt,) = (place := Location.of(f"{run_uri.partition('?')[0]}/tracking/lines?{run_uri.partition('?')[2]}")).names()
    data = place.child(attempt, "all.jsonl").read()
    assert data is not None
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.slow
def test_a_training_with_a_framework_a_tracker_a_storage_and_a_registry_of_another_package(
    tmp_path: Path, installed: Path, cluster: LocalCluster
) -> None:
    storage = f"shelf://first?root={tmp_path}"
    fields = training(storage, train_loop_per_worker=learning, scaling_config=ScalingConfig(num_workers=2))
    spec = TrainSpec(**fields, runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)])}})
    result = run(spec, cluster)
    import numpy as np

    assert result.metrics["drawn"] == np.random.default_rng(5 + 3).random()
    assert (tmp_path / "first" / "learns").is_dir()
    *reports, last = lines_of(result.run.uri)
    losses = [(line["step"], line["metrics"]["loss"]) for line in reports if "loss" in line["metrics"]]
    assert (losses, last) == ([(1, 1), (2, 1 / 2), (3, 1 / 3), (4, 1 / 4)], {"status": "finished"})
    assert result.tracking["lines"].startswith("shelf://first/learns/tracking/lines")
    assert run(spec, cluster) == result, "the stored result is read back"
    registry = f"ledger:{tmp_path}/models.json"
    assert promote(result, "learner", registry=registry).version == 1
    assert get_model("learner", registry=registry).checkpoint == result.checkpoint.uri  # type: ignore[union-attr]


def test_a_spec_with_what_another_package_adds_survives_its_file(tmp_path: Path, installed: Path) -> None:
    spec = parse_spec(training(f"shelf://first?root={tmp_path}", train_loop_per_worker="m:f"))
    again = parse_spec(json.loads(spec.model_dump_json()))
    assert again == spec
    assert (type(again.tracking[0]).__name__, again.tracking[0].file) == ("Lines", "all.jsonl")  # type: ignore[attr-defined]
    assert spec.model_copy(update={"tracking": ["lines"]}).tracking[0].file == "reports.jsonl"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"framework": "numpi"}, r"framework: got 'numpi'; expected torch, .*numpy \(did you mean numpy\?\)"),
        ({"framework": "numpy", "params": {}}, "params: got it with framework 'numpy'; only valid with xgboost, lightgbm"),
        ({"tracking": "line"}, r"^tracking\.0\.type: got 'line'; expected one of mlflow, .*lines$"),
        ({"tracking": {"type": "lines", "fil": "a"}}, r"tracking.0.*fil"),
        ({"run_config": {"name": "a", "storage_path": "shelv://a/b"}}, "'shelv://a/b'; expected a local path.*shelf"),
        ({"run_config": {"name": "a", "storage_path": "shelf://a?token=x"}}, r"a secret must be given as.*token=\$NAME"),
    ],
)
def test_bad_input_for_what_another_package_adds(installed: Path, change: dict[str, Any], words: str) -> None:
    fields = training("shelf://first", train_loop_per_worker="m:f", **change)
    with pytest.raises(SpecError, match=words) as caught:
        parse_spec(fields)
    assert "=x" not in str(caught.value)


def test_without_the_package_its_names_are_unknown() -> None:
    with pytest.raises(SpecError, match="framework: got 'numpy'; expected torch"):
        parse_spec(training("runs", train_loop_per_worker="m:f"))
    with pytest.raises(SpecError, match="'lines'; expected one of mlflow, wandb, tensorboard, comet"):
        parse_spec(training("runs", train_loop_per_worker="m:f", framework="python"))


def test_promotions_and_rollbacks_in_a_registry_of_another_package(tmp_path: Path, installed: Path) -> None:
    registry = f"ledger:{tmp_path}/models.json"
    assert get_model("m", registry=registry) is None
    for number in (1, 2, 3):
        (folder := tmp_path / f"checkpoint-{number}").mkdir()
        (folder / "weights").touch()
        assert promote(str(folder), "m", registry=registry).version == number
    with pytest.raises(AliasMovedError, match="moved meanwhile, from version 1 to 3"):
        open_registry(registry).move("m", "champion", 1, expected=1)
    assert [rollback("m", registry=registry).version for _ in range(2)] == [2, 1]
    with pytest.raises(SpecError, match="which has no previous version"):
        rollback("m", registry=registry)
    with pytest.raises(SpecError, match=r"registry: .*with a password"):
        open_registry("ledger://me:secret@host/models.json".replace("://", ":http://"))


def broken(folder: Path, name: str, *lines: str) -> None:
    """An installed package whose entry points lead nowhere, or to something else."""
    (there := folder / f"{name}-1.dist-info").mkdir()
    (there / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (there / "entry_points.txt").write_text("\n".join(lines) + "\n")


def test_packages_that_add_nothing_usable_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path, "one", "[raytrain.frameworks]", "gone = nowhere:F", "odd = json:loads", "both = json:loads")
    broken(tmp_path, "two", "[raytrain.frameworks]", "both = json:dumps", "[raytrain.trackers]", "odd = json:loads")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, words in {
        "gone": r"framework: got 'gone', whose plugin nowhere:F cannot be imported here \(ModuleNotFoundError:",
        "odd": "framework: got 'odd', whose plugin is <function loads.*; expected a Framework of that name",
        "both": r"framework: got 'both', which 2 packages add \(json:dumps, json:loads\); expected one",
    }.items():
        with pytest.raises(SpecError, match=words):
            TrainSpec(framework=name, train_loop_per_worker="m:f")
    with pytest.raises(SpecError, match=r"got 'odd', whose plugin is <function loads.*; expected a Tracker"):
        TrainSpec(framework="python", train_loop_per_worker="m:f", tracking=["odd"])


# ---- declarations of step kinds


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
    for field in ("check", "training"):
        with pytest.raises(TypeError, match=rf"StepKind.{field}: got 'a'; expected 'package.module:function'"):
            declare(StepKind(WholeCopySpec, CopyResult, "a:b", **{field: "a"}))


def test_a_name_is_declared_once() -> None:
    declare(StepKind(WholeCopySpec, CopyResult, "a:b"))
    declare(StepKind(WholeCopySpec, CopyResult, "a:b"))
    with pytest.raises(ValueError, match="kind: 'copy' is declared twice"):
        declare(StepKind(WholeCopySpec, CopyResult, "another:module"))


class CheckedSpec(WholeCopySpec):
    kind: Literal["checked"] = "checked"  # type: ignore[assignment]


class CheckedResult(StepResult):
    kind: Literal["checked"] = "checked"


def refuse(spec: CheckedSpec, here: bool, current: RunDir | None) -> None:
    raise SpecError(f"name: got {spec.run_config.name!r}; expected another")


def test_a_kind_refuses_a_step_before_it_is_submitted(tmp_path: Path) -> None:
    declare(StepKind(CheckedSpec, CheckedResult, "a:b", check="tests.e2e.test_plugins:refuse"))
    spec = CheckedSpec(run_config=RunConfig(name="checked", storage_path=str(tmp_path)))
    with FakeCluster() as cluster:
        with pytest.raises(SpecError, match="name: got 'checked'; expected another"):
            run(spec, cluster)
        assert cluster.submits == 0
