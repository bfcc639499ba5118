"""What the product exports, and that its rooms are those of the diagram."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USERS = """
    BatchInferResult BatchInferSpec CheckpointConfig CheckpointRef Comet Comparison DatasetConfig EvaluateSpec
    Evaluation EvaluationResult FailureConfig FallbackCluster KubeRayCluster KubeRaySettings Limits LocalCluster
    LocalTier MLflow ModelVersion PreemptionNotice RayCluster RayJobResult RayJobSpec RetrainResult RetrainSpec
    RunConfig RunRef ScalingConfig TensorBoard TensorflowConfig Threshold TorchConfig TrainResult TrainSpec
    TuneResult TuneSpec WandB artifact_directory arun best_train_spec execute get_model history load_preprocessor
    load_spec parse_result parse_spec plot promote rollback run save_preprocessor
"""
ENGINES = """
    acancel as_spec BatchInferResult BatchInferSpec call_arguments cancel CHAMPION check_size Cluster
    describe_cluster did_you_mean effective_time_of end_shared EvaluateSpec EvaluationResult Event FallbackCluster
    fields_fingerprint find_cluster find_fallback fingerprint free_ports History how_to_open in_background in_own_loop
    in_thread kuberay_from_json Line LocalCluster Log make_record markdown_report markdown_text metric_rows ModelVersion
    newest_run prepare promote promoted RayCluster RayJobResult RayJobSpec RayTrainWorkflowsError Reading
    refuse_beside_a_call RetrainResult RetrainSpec rollback run_name run_sync RunDir safe_link Secrets shown
    spec_datasets SpecError start_shared StepCancelledError StepError StepResult StepSpec Supervisor Threads
    Tracker TrainResult TrainSpec trial_rows TuneResult TuneSpec wait_for_end
"""


@pytest.mark.parametrize(("module", "names"), [("plugin_core", USERS), ("plugin_core.engine", ENGINES)])
def test_the_exported_names_are_the_listed_ones_and_load(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert found.__all__ == sorted(names.split())
    for name in found.__all__:
        assert getattr(found, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = found.nonsense


@pytest.mark.parametrize("file", ["plugin_core/__init__.py", "plugin_core/engine.py", "prefect_integration/__init__.py"])
def test_type_checkers_see_the_same_names_from_the_same_modules(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    module = importlib.import_module(file.removesuffix("/__init__.py").removesuffix(".py").replace("/", "."))
    package = file.partition("/")[0]
    assert seen == {name: f"{package}.{home}" for home, names in module._PUBLIC.items() for name in names.split()}
    assert module.__all__ == sorted(seen)


def layers() -> list[list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rooms,) = [contract for contract in contracts if contract["type"] == "layers"]
    return [[room.strip() for room in layer.split("|")] for layer in rooms["layers"]]


def test_the_core_has_at_most_13_rooms_and_each_says_what_it_is_for() -> None:
    rooms = [room for layer in layers() for room in layer]
    assert len(rooms) <= 13
    for room in rooms:
        place = ROOT / "plugin_core" / room
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert ast.get_docstring(ast.parse(file.read_text())), file


def test_the_diagram_of_the_rooms_matches_the_contract() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    (diagram,) = re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL)
    floors = {room: floor for floor, layer in enumerate(layers()) for room in layer}
    drawn = set(re.findall(r"\b[a-z_]+\b", diagram))
    assert floors.keys() <= drawn
    arrows = [line.split("-->") for line in diagram.splitlines() if "-->" in line]
    assert arrows
    for start, end in arrows:
        below = [floors[room] for room in re.findall(r"\b[a-z_]+\b", end) if room in floors]
        for room in re.findall(r"\b[a-z_]+\b", start):
            assert room not in floors or all(floors[room] < floor for floor in below), (start, end)


def test_the_files_and_names_on_the_architecture_page_exist() -> None:
    files = [
        file for folder in ("plugin_core", "airflow_provider", "prefect_integration", "tests") for file in walked(folder)
    ]
    names = {word for file in files for word in re.findall(r"\w+", file.read_text())}
    text = re.sub(r"```.*?```", "", (ROOT / "docs" / "architecture.md").read_text(), flags=re.DOTALL)
    quoted = set(re.findall(r"`([\w./]+)`", text))
    for path in (path for path in quoted if path.endswith(".py")):
        assert any(str(file.relative_to(ROOT)).endswith(f"/{path}") or file == ROOT / path for file in files), path
    dotted = {name for name in quoted if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name) and not name.endswith(".py")}
    assert {name for name in dotted if not names.issuperset(name.split("."))} == set()


def walked(folder: str) -> list[Path]:
    return list((ROOT / folder).rglob("*.py"))


def test_no_file_is_longer_than_350_lines() -> None:
    folders = (
        "plugin_core",
        "airflow_provider",
        "prefect_integration",
        "tests",
        "benchmarks",
        "example_flows",
        "example_dags",
    )
    files = [file for folder in folders for file in walked(folder)]
    assert {str(file.relative_to(ROOT)): n for file in files if (n := len(file.read_text().splitlines())) > 350} == {}
