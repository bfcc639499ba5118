"""Batch inference without a cluster; on a real head: tests/integration/test_batch_infer.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from plugin_core.driver import batch_infer
from plugin_core.runs.directory import RunDir


def test_the_keys_of_one_prediction_leave_no_row_out_of_what_the_process_writes_next(tmp_path: Path) -> None:
    """`execute()` runs one step after another in a process, and Ray Data's settings are the process's."""
    import ray.data

    context: Any = SimpleNamespace(rundir=RunDir.at(str(tmp_path / "run")), attempt=1)
    keyed, other = (SimpleNamespace(preserve_order=False, key_column=name) for name in ("key", None))
    settings = ray.data.DataContext.get_current()
    for spec, column in ((keyed, "key"), (other, None), (keyed, "key")):
        with batch_infer._configured(context, spec):  # type: ignore[arg-type]
            set_now = settings.checkpoint_config
            assert (set_now.id_column if set_now is not None else None) == column
        assert settings.checkpoint_config is None
