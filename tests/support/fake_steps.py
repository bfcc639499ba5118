"""Specs for tests of the supervisor and its parts, which the fake cluster plays."""

from pathlib import Path
from typing import Any

from plugin_core import RunConfig, TrainSpec
from plugin_core.specs import Limits

LOOP = "devtools.steps:counting_loop"


def spec_at(tmp_path: Path, **fields: Any) -> TrainSpec:
    fields.setdefault("limits", Limits(heartbeat_ttl_s=0.2))
    run_config = RunConfig(name="run", storage_path=str(tmp_path))
    return TrainSpec(**{"train_loop_per_worker": LOOP, "framework": "python", "run_config": run_config, **fields})
