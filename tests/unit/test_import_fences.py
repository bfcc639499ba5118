"""What may import what, and what an engine's parser pays."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"ray", "torch", "pandas", "mlflow", "xgboost", "pyarrow", "boto3"}


def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize(
    ("package", "fenced"),
    [
        ("plugin_core", {"prefect", "airflow", "prefect_integration", "airflow_provider"}),
        ("prefect_integration", {"airflow", "airflow_provider", "ray"}),
        ("airflow_provider", {"prefect", "prefect_integration", "ray"}),
    ],
)
def test_the_core_imports_no_adapter_and_adapters_import_neither_each_other_nor_ray(package: str, fenced: set[str]) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    assert {file.name: imported(file) & fenced for file in files if imported(file) & fenced} == {}


@pytest.mark.parametrize(
    "module", ["plugin_core", "plugin_core.supervisor.supervisor", "airflow_provider.operators", "prefect_integration"]
)
def test_importing_what_an_engine_parses_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_parsing_a_dag_does_not_load_the_http_client() -> None:
    code = "import sys, airflow_provider.operators; print('aiohttp' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_the_public_names_of_the_core_exist() -> None:
    import plugin_core

    assert len(plugin_core.__all__) > 20
    for name in plugin_core.__all__:
        assert getattr(plugin_core, name) is not None


def test_windows_gets_one_sentence_that_says_where_the_product_runs() -> None:
    code = "import sys; sys.platform = 'win32'; import plugin_core.supervisor.supervisor"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stderr.strip()
    assert said.splitlines()[-1] == "ImportError: ray-train-workflows runs under Linux and macOS; on Windows run it in WSL"
