"""MLflow's model registry. The server needs no extra setup; credentials come from MLflow's own environment variables.

MLflow sets an alias without a compare-and-swap: another client can move it between our check and our move. If two clients
may promote at once, use a retraining's lease or the file registry.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from plugin_core.errors import AliasMovedError, SpecError, StorageError
from plugin_core.registry.base import ModelVersion

#: Tags of a version: our own fields, and the alias's previous version.
_TAG = "raytrain."
#: Prefix of a local path in a version's source; the path itself is in a tag.
LOCAL = "raytrain-file://"


class MLflowRegistry:
    def __init__(self, tracking_uri: str | None = None):
        try:
            from mlflow import MlflowClient
        except ImportError as exc:
            raise SpecError("registry: mlflow needs mlflow: pip install 'ray-train-workflows[mlflow]'") from exc
        self._client: Any = MlflowClient(tracking_uri, registry_uri=tracking_uri)

    def register(self, model: ModelVersion) -> ModelVersion:
        with _as_storage_errors():
            self._ensure(model.name)
            for there in self._client.search_model_versions(f"name='{model.name}'"):
                if there.tags.get(f"{_TAG}checkpoint") == model.checkpoint:
                    return _from_mlflow(there)
            fields = {**model.to_json(), "metrics": json.dumps(model.metrics)}
            tags = {f"{_TAG}{key}": str(value) for key, value in fields.items() if value and key not in ("name", "version")}
            # MLflow's server rejects local paths as a source, except its own
            source = model.checkpoint if "://" in model.checkpoint else f"{LOCAL}{model.checkpoint}"
            return _from_mlflow(self._client.create_model_version(model.name, source, tags=tags))

    def get(self, name: str, alias: str) -> ModelVersion | None:
        found = self._find(name, alias)
        return _from_mlflow(found) if found is not None else None

    def move(self, name: str, alias: str, to: int, expected: int) -> None:
        self._check(name, alias, expected)
        with _as_storage_errors():
            # before the move: a retry does not get here once the alias has moved, and until then nobody reads the tag
            self._client.set_model_version_tag(name, str(to), f"{_TAG}before.{alias}", str(expected))
            self._client.set_registered_model_alias(name, alias, str(to))

    def previous(self, name: str, alias: str) -> int:
        found = self._find(name, alias)
        return int(found.tags.get(f"{_TAG}before.{alias}", 0)) if found is not None else 0

    def roll_back(self, name: str, alias: str, to: int, expected: int) -> None:
        self._check(name, alias, expected)
        with _as_storage_errors():
            self._client.set_registered_model_alias(name, alias, str(to))

    def _check(self, name: str, alias: str, expected: int) -> None:
        now = self.get(name, alias)
        at = now.version if now else 0
        if at != expected:
            raise AliasMovedError(f"alias: {alias!r} of {name!r} moved meanwhile, from version {expected} to {at}")

    def _find(self, name: str, alias: str) -> Any:
        from mlflow.exceptions import MlflowException

        with _as_storage_errors():
            try:
                return self._client.get_model_version_by_alias(name, alias)
            except MlflowException as exc:
                # one means an unknown model, the other an unknown alias of a known model
                if exc.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise

    def _ensure(self, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_registered_model(name)
        except MlflowException as exc:
            if exc.error_code != "RESOURCE_ALREADY_EXISTS":
                raise


def _from_mlflow(found: Any) -> ModelVersion:
    tags = {key.removeprefix(_TAG): value for key, value in found.tags.items() if key.startswith(_TAG)}
    metrics = json.loads(tags.pop("metrics", "{}"))
    fields = {"checkpoint": found.source.removeprefix(LOCAL), **tags}
    return ModelVersion(name=found.name, version=int(found.version), metrics=metrics, **fields)


@contextlib.contextmanager
def _as_storage_errors() -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as exc:
        raise StorageError(f"registry: the MLflow request failed ({str(exc).splitlines()[0]})") from exc
