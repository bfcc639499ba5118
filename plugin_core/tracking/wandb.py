"""Weights & Biases: a run with an id derived from the run directory's URI; resumed online, rewritten offline."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from plugin_core.specs.tracking import WandB
from plugin_core.tracking.backend import Backend, Entry, last_checkpoint
from plugin_core.tracking.staged import Staged
from plugin_core.tracking.wandb_log import wait_until_written


class WandBBackend(Backend):
    config: WandB

    def begin(self) -> int:
        self._offline = (self.config.mode or os.environ.get("WANDB_MODE", "online")) == "offline"
        if self._offline:
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its error reports use the network
        import wandb

        subject = self.subject
        self._id = subject.key[:16]
        self._staged = Staged(subject, "wandb") if self._offline else None
        # do not log the driver's output or system metrics
        settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, silent=True)
        self._run: Any = wandb.init(
            id=self._id,
            project=self.config.project,
            entity=self.config.entity,
            group=self.config.group or self._group(),
            name=subject.name,
            job_type=subject.kind,
            tags=self.config.tags,
            config={**subject.params, **subject.tags},
            mode="offline" if self._offline else "online",
            resume="allow",
            reinit="create_new",
            dir=str(self._staged.folder) if self._staged else tempfile.gettempdir(),
            settings=settings,
        )
        self.subject.keep("wandb", {"run_id": self._id})
        self.url = self._staged.place.uri if self._staged else self._run.url
        # online, the run knows its own progress
        return 0 if self._offline else int(dict(self._run.summary).get("raytrain/reports", 0))

    def _group(self) -> str | None:
        """The group that a search's trials share."""
        parent = self.subject.parent
        return parent.name if parent is not None else None

    def log(self, entries: list[Entry]) -> None:
        for entry in entries:
            more = {"raytrain/reports": entry.index, "raytrain/time": entry.time}
            self._run.log({**entry.metrics, **more}, step=entry.step)
        if checkpoint := last_checkpoint(entries):
            self._run.summary["raytrain/checkpoint"] = checkpoint

    def end(self, status: str, message: str) -> None:
        self._run.summary["raytrain/status"] = status
        if message:
            self._run.summary["raytrain/error"] = message
        self._close(0 if status == "finished" else 1)

    def leave(self) -> None:
        self._close(1)

    def _close(self, exit_code: int) -> None:
        self._run.finish(exit_code=exit_code)
        if self._staged:
            wait_until_written(self._staged.folder)
            self._staged.close()

    def worker_environment(self) -> dict[str, str]:
        own = {"WANDB_RUN_ID": self._id, "WANDB_RESUME": "allow", "WANDB_PROJECT": self.config.project}
        if self.config.entity:
            own["WANDB_ENTITY"] = self.config.entity
        return own | ({"WANDB_MODE": "offline"} if self._offline else {})

    def other_workers_environment(self) -> dict[str, str]:
        return {"WANDB_MODE": "disabled"}


BACKEND = WandBBackend
