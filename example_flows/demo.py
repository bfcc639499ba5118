"""What the example flows share when they are run from a shell: their folders, a temporary Prefect, and the table."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from plugin_core.specs.results import BatchInferResult, EvaluationResult, TrainResult
from plugin_core.storage.location import Location

#: Where an example keeps its files on this machine by default.
FOLDER = Path(".demo").absolute()
STORAGE = str(FOLDER / "runs")
_STARTED = time.monotonic()


def prefect_environment() -> None:
    """Settings for a shell without a Prefect: call it before Prefect is imported. The user's own settings are kept."""
    if "PREFECT_API_URL" in os.environ:
        return
    if "PREFECT_HOME" not in os.environ:
        home = FOLDER / "prefect"
        home.mkdir(parents=True, exist_ok=True)
        os.environ["PREFECT_HOME"] = str(home)
        # result storage does not follow PREFECT_HOME
        os.environ.setdefault("PREFECT_LOCAL_STORAGE_PATH", str(home / "storage"))
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    os.environ.setdefault("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "true")
    # do not try to reach the internet
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")


def show(title: str, train: TrainResult, evaluation: EvaluationResult, predictions: BatchInferResult | None = None) -> int:
    """Print a table of the results; returns 0 if the thresholds are met and every file is where the result says."""
    from rich.console import Console
    from rich.table import Table

    rows = {f"test {name}": _number(value) for name, value in evaluation.metrics.items()}
    rows |= {f"train {name}": _number(value) for name, value in train.metrics.items()}
    places = {"run directory": train.run.uri, "checkpoint": train.checkpoint.uri if train.checkpoint else ""}
    if predictions is not None:
        rows["predicted rows"] = str(predictions.rows)
        places["predictions"] = predictions.output
    rows |= {**places, "seconds": f"{time.monotonic() - _STARTED:.0f}"}

    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    # paths stay on one line, for people who copy them and for scripts that read them
    console = Console(width=max(80, *(len(value) + 30 for value in rows.values())))
    console.print(table)

    missing = [name for name, uri in places.items() if not uri or not Location.of(uri).exists()]
    for name in missing:
        console.print(f"missing: the {name}")
    for name, why in evaluation.failed.items():
        console.print(f"not good enough: {name}: {why}")
    return 0 if evaluation.passed and not missing else 1


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
