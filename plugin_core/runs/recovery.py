"""What the failures of a run leave behind, folded from the journal: the next attempt has to follow it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Recovery:
    """`restarts`: cause → restarts that followed its rule. `on_node`: (cause, node) → failures there. `changed`: values
    that replace those of `train_loop_config`. `dropped`: checkpoints that no longer belong to the run. `excluded`: the
    Ray ids of nodes that the run no longer uses."""

    restarts: Counter[str] = field(default_factory=Counter)
    on_node: Counter[tuple[str, str]] = field(default_factory=Counter)
    changed: dict[str, Any] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    excluded: list[str] = field(default_factory=list)

    def add(self, entry: dict[str, Any]) -> None:
        """Take in a journal entry that names the cause of a failure."""
        cause = str(entry["cause"])
        if node := entry.get("node"):
            self.on_node[cause, str(node)] += 1
        if entry.get("by_rule"):
            self.restarts[cause] += 1
        if isinstance(changed := entry.get("changed"), dict):
            self.changed |= changed
        if isinstance(dropped := entry.get("dropped"), list):
            self.dropped.update(map(str, dropped))
        if (excluded := entry.get("excluded")) and str(excluded) not in self.excluded:
            self.excluded.append(str(excluded))
