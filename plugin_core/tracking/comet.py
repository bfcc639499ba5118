"""Comet: an experiment keyed by the run directory's URI; resumed online, written to a fresh archive offline."""

from __future__ import annotations

import os
from typing import Any

from plugin_core.specs.tracking import Comet
from plugin_core.tracking.backend import Backend, Entry, last_checkpoint
from plugin_core.tracking.staged import Staged


class CometBackend(Backend):
    config: Comet

    def begin(self) -> int:
        offline = self.config.mode == "offline"
        if offline:
            os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")  # its error reports use the network
        import comet_ml

        subject = self.subject
        self._key = subject.key[:40]
        self._staged = Staged(subject, "comet") if offline else None
        settings = comet_ml.ExperimentConfig(
            name=subject.name,
            tags=self.config.tags,
            offline_directory=str(self._staged.folder) if self._staged else None,
            log_code=False,
            log_graph=False,
            log_env_gpu=False,
            log_env_cpu=False,
            log_env_host=False,
            log_git_metadata=False,
            log_git_patch=False,
            auto_output_logging=False,
            auto_param_logging=False,
            auto_metric_logging=False,
            display_summary_level=0,
        )
        self._experiment: Any = comet_ml.start(
            project_name=self.config.project_name,
            workspace=self.config.workspace,
            experiment_key=self._key,
            online=not offline,
            mode="create" if offline else "get_or_create",
            experiment_config=settings,
        )
        self._experiment.log_parameters(subject.params)
        for name, value in subject.tags.items():
            self._experiment.log_other(name, value)
        self.url = self._staged.place.uri if self._staged else self._experiment.url
        return 0  # replay the whole journal: online, repeats land at the same step; offline, the archive is empty

    def log(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._experiment.log_metrics(entry.metrics, step=entry.step)
        if checkpoint := last_checkpoint(entries):
            self._experiment.log_other("raytrain.checkpoint", checkpoint)

    def end(self, status: str, message: str) -> None:
        self._experiment.log_other("raytrain.status", status)
        if message:
            self._experiment.log_other("raytrain.error", message)
        self.leave()

    def leave(self) -> None:
        self._experiment.end()
        if self._staged:
            self._staged.close()

    def worker_environment(self) -> dict[str, str]:
        return {"COMET_EXPERIMENT_KEY": self._key, "COMET_PROJECT_NAME": self.config.project_name}

    def other_workers_environment(self) -> dict[str, str]:
        return {"COMET_DISABLE_AUTO_LOGGING": "1", "COMET_START_ONLINE": "0"}


BACKEND = CometBackend
