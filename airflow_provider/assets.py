"""Asset events of a step's outlets: checkpoint URI, metrics and run in the event's extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import Asset, AssetAlias

#: Airflow stores an event's extra in its database, so it is kept small; everything else is in the run directory.
_KEPT = (
    *("kind", "run", "checkpoint", "best_checkpoint", "best", "best_config", "metrics", "passed", "output", "rows"),
    *("outcome", "champion", "name", "version", "dataset"),
)


def announce(outlets: list[Any], outlet_events: Any, result: Mapping[str, Any]) -> None:
    """Attach the result to each outlet: to an asset as its event's extra, to an alias as an asset for the checkpoint."""
    extra = {name: result[name] for name in _KEPT if result.get(name) is not None}
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            outlet_events[outlet].add(_asset_of(result), extra=extra)
        elif isinstance(outlet, Asset):
            outlet_events[outlet].extra.update(extra)


def _asset_of(result: Mapping[str, Any]) -> Asset:
    checkpoint = result.get("checkpoint") or (result.get("best") or {}).get("checkpoint") or {}
    place = checkpoint.get("uri") or result.get("output") or result["run"]["uri"]
    return Asset(name=result["run"]["uri"], uri=place if "://" in place else f"file://{place}")
