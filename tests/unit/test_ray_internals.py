"""The names of Ray's private API that this product needs, and that only one room uses them."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOM = ROOT / "plugin_core" / "ray_internals"
NEEDED = {
    "ray.data._internal.execution.execution_callback": {"ExecutionCallback"},
    "ray._private.dict": {"flatten_dict"},
    "ray._private.parameter": {"RayParams"},
    "ray._private": {"services", "utils"},
    "ray._private.worker": {"WORKER_MODE", "global_worker"},
    "ray._raylet": {"GcsClient", "setproctitle"},
    "ray.experimental.internal_kv": {
        *("_internal_kv_del", "_internal_kv_get", "_internal_kv_put", "_pin_runtime_env_uri"),
        "internal_kv_get_gcs_client",
    },
    "ray.train._internal": {"session"},
    "ray.train.v2._internal.callbacks": {"DatasetsCallback"},
    "ray.train.v2._internal.callbacks.placement_group_callback": {"PlacementGroupCleanerCallback"},
    "ray.train.v2._internal.exceptions": {"RayTrainError", "UserExceptionWithTraceback"},
    "ray.train.v2._internal.execution": {"train_fn_utils"},
    "ray.train.v2._internal.execution.callback": {"ControllerCallback", "ReportCallback", "WorkerGroupCallback"},
    "ray.train.v2._internal.execution.checkpoint.checkpoint_manager": {
        "CheckpointManager",
        "_CheckpointManagerState",
        "_TrainingResultState",
    },
    "ray.train.v2._internal.execution.context": {"get_train_context"},
    "ray.train.v2._internal.execution.controller": {"TrainController"},
    "ray.train.v2._internal.execution.train_fn_utils": {"DistributedTrainFnUtils"},
    "ray.train.v2._internal.execution.training_report": {"_TrainingReport"},
    "ray.train.v2._internal.execution.worker_group": {"Worker", "WorkerGroup", "WorkerGroupPollStatus"},
    "ray.train.v2._internal.execution.worker_group.poll": {"PollTask", "WorkerStatus"},
    "ray.train.v2._internal.execution.worker_group.worker": {"RayTrainWorker"},
}


def is_private(module: str) -> bool:
    parts = module.split(".")
    return parts[0] == "ray" and (any(part.startswith("_") for part in parts) or module == "ray.experimental.internal_kv")


def private_imports(file: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and is_private(node.module):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update({alias.name: set() for alias in node.names if is_private(alias.name)})
    return found


@pytest.mark.parametrize(("module", "names"), NEEDED.items())
def test_this_ray_version_has_the_private_names(module: str, names: set[str]) -> None:
    found = importlib.import_module(module)
    assert {name for name in names if hasattr(found, name)} == names


def test_this_ray_version_has_what_the_fork_server_names() -> None:
    from ray._private import utils

    assert callable(utils.set_omp_num_threads_if_unset)


def test_this_ray_version_has_the_private_methods_of_an_upload() -> None:
    from ray.dashboard.modules.dashboard_sdk import SubmissionClient

    for name in ("_do_request", "_upload_working_dir_if_needed", "_upload_py_modules_if_needed"):
        assert callable(getattr(SubmissionClient, name)), name


def test_the_list_is_complete() -> None:
    used: dict[str, set[str]] = {}
    for file in ROOM.glob("*.py"):
        for module, names in private_imports(file).items():
            used.setdefault(module, set()).update(names)
    assert used == NEEDED


def test_no_other_file_of_the_product_uses_private_ray_names() -> None:
    files = [
        file
        for package in ("plugin_core", "airflow_provider", "prefect_integration")
        for file in (ROOT / package).rglob("*.py")
    ]
    assert [str(file) for file in files if ROOM not in file.parents and private_imports(file)] == []
