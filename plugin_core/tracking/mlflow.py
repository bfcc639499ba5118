"""MLflow: finds a run by its tag or creates it; logs metrics at the reports' own times, so repeats change nothing.

MLflow's stores keep a metric once per key, step and time (a primary key of the SQL store).
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.specs.results import CheckpointRef
from plugin_core.specs.tracking import MLflow
from plugin_core.storage.location import Location
from plugin_core.tracking.backend import Backend, Entry, last_checkpoint

#: The tag that records the run's progress: the index of the last report it has.
REPORTS = "raytrain.reports"
#: The experiment's name if neither spec nor environment sets one.
EXPERIMENT = "ray-train-workflows"
#: MLflow's limits on a request, and on names and values (from its REST API documentation).
METRICS, PARAMS, NAME, VALUE = 1000, 100, 250, 6000
STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}


class MLflowBackend(Backend):
    config: MLflow

    def begin(self) -> int:
        # by default its client retries for many minutes; our caller retries, and logs it
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        import mlflow

        self._uri = self.config.tracking_uri or mlflow.get_tracking_uri()
        self._client = mlflow.MlflowClient(self._uri)
        run = self._find() or self._create()
        self._run_id, self._experiment_id = run.info.run_id, run.info.experiment_id
        if self._uri.startswith("http"):
            self.url = f"{self._uri.rstrip('/')}/#/experiments/{self._experiment_id}/runs/{self._run_id}"
        else:
            self.url = f"{self._uri}#{self._run_id}"
        self._describe(run)
        return int(run.data.tags.get(REPORTS, 0))

    def _find(self) -> Any:
        kept = self.subject.load("mlflow")
        given = self.config.run_id
        if given is not None:
            run = self._client.get_run(given)
            owner = run.data.tags.get("raytrain.run", self.subject.rundir.uri)
            if owner != self.subject.rundir.uri:
                raise SpecError(f"tracking.mlflow.run_id: got {given!r}, which belongs to {owner}; expected an unused run")
            self.subject.keep("mlflow", {"run_id": given})
            return run
        if kept:
            return self._client.get_run(kept["run_id"])
        return None

    def _create(self) -> Any:
        experiment_id = self._experiment()
        tag = f"tags.`raytrain.run` = '{self.subject.rundir.uri}'"
        found = self._client.search_runs([experiment_id], tag, order_by=["attributes.start_time ASC"], max_results=1)
        if not found:
            tags = {"mlflow.note.content": self._note(), **self.config.tags, **self.subject.tags}
            if parent := self.subject.parents("mlflow").get("run_id"):
                tags["mlflow.parentRunId"] = parent
            found = [self._client.create_run(experiment_id, tags=tags, run_name=self.subject.name)]
        (run,) = found
        kept = self.subject.keep("mlflow", {"run_id": run.info.run_id})["run_id"]
        if kept != run.info.run_id:
            self._client.delete_run(run.info.run_id)  # another process created one first
            return self._client.get_run(kept)
        return run

    def _note(self) -> str:
        """The description on the run's page: what started it, and where its files are."""
        origin = self.subject.tags
        engine, page = origin.get("raytrain.orchestrator"), origin.get("raytrain.engine_url")
        started = f"Started by [{engine}]({page})\n\n" if engine and page else ""
        return f"{started}Run directory: `{self.subject.rundir.uri}`"

    def _experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = self.config.experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException as exc:
                if exc.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(name)  # another run created it first
        if found.lifecycle_stage == "deleted":
            raise SpecError(
                f"tracking.mlflow.experiment_name: got {name!r}, which is deleted; expected another, or restore this one"
            )
        return str(found.experiment_id)

    def _describe(self, run: Any) -> None:
        from mlflow.entities import Param, RunTag

        self._client.update_run(self._run_id, status="RUNNING")
        known = run.data.params
        names = _names(self.subject.params)
        params = [Param(names[key], _short(value)) for key, value in self.subject.params.items() if names[key] not in known]
        tags = [RunTag(name, _short(value)) for name, value in self.subject.tags.items()]
        self._client.log_batch(self._run_id, tags=tags)
        for start in range(0, len(params), PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + PARAMS])

    def log(self, entries: list[Entry]) -> None:
        from mlflow.entities import Metric, RunTag

        names = _names({name: None for entry in entries for name in entry.metrics})
        metrics = [
            Metric(names[name], value, round(entry.time * 1000), entry.step)
            for entry in entries
            for name, value in entry.metrics.items()
        ]
        for start in range(0, len(metrics), METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + METRICS])
            self.moved()
        if self.config.log_checkpoints:
            for entry in entries:
                if entry.checkpoint:
                    self._upload(entry.checkpoint)
        tags = [RunTag(REPORTS, str(entries[-1].index))]
        if checkpoint := last_checkpoint(entries):
            tags.append(RunTag("raytrain.checkpoint", checkpoint))
        self._client.log_batch(self._run_id, tags=tags)

    def _upload(self, checkpoint: str) -> None:
        place = Location.of(checkpoint)
        if not place.names():
            return  # deleted in the meantime: the run keeps only its best or latest
        with CheckpointRef(uri=checkpoint).as_directory() as folder:
            to = PurePosixPath("checkpoints", place.name)
            for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                self._client.log_artifact(self._run_id, str(file), str(to / file.relative_to(folder).parent))
                self.moved()

    def leave(self) -> None:
        pass

    def end(self, status: str, message: str) -> None:
        if message:
            self._client.set_tag(self._run_id, "raytrain.error", _short(message))
        self._client.set_terminated(self._run_id, STATUS[status])

    def worker_environment(self) -> dict[str, str]:
        return {
            "MLFLOW_TRACKING_URI": self._uri,
            "MLFLOW_RUN_ID": self._run_id,
            "MLFLOW_EXPERIMENT_ID": str(self._experiment_id),
        }

    def other_workers_environment(self) -> dict[str, str]:
        """A throwaway tracking store, made of files because a database takes seconds to create."""
        folder = f"file://{tempfile.gettempdir()}/raytrain-other-ranks-{os.getuid()}"
        return {"MLFLOW_TRACKING_URI": folder, "MLFLOW_ALLOW_FILE_STORE": "true"}


BACKEND = MLflowBackend


def _names(given: dict[str, Any]) -> dict[str, str]:
    """Map names to unique ones that MLflow accepts: letters, digits and _ - . space : /, limited in length."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for name in given:
        safe = re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII).strip("/. ")[:NAME] or "_"
        safe = re.sub(r"/{2,}", "/", safe)
        number = 2
        unique = safe
        while unique in taken:
            unique, number = f"{safe[: NAME - 6]}_{number}", number + 1
        taken.add(unique)
        names[name] = unique
    return names


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= VALUE else f"{text[: VALUE - 1]}…"
