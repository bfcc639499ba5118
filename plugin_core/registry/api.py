"""The model registry: which checkpoint a name and an alias ("champion") stand for, where it came from, and what stood there
before.

`promote` and `rollback` are calls of the orchestrator's, without a Ray job. A registry is a folder on our storage (the
default), or MLflow's.
"""

from __future__ import annotations

from typing import Any

from plugin_core.errors import AliasMovedError, PromotionRefusedError, SpecError
from plugin_core.registry.base import ModelVersion, Registry
from plugin_core.runs.pins import home_of, pin
from plugin_core.specs.parse import parse_result
from plugin_core.specs.references import check_model_name, check_registry, is_mlflow
from plugin_core.specs.results import CheckpointRef, EvaluationResult, TrainResult, TuneResult
from plugin_core.storage.location import Location, default_storage_path

CHAMPION = "champion"
#: The folder of a storage path in which its registry is.
FOLDER = "_models"


def open_registry(uri: str | None = None) -> Registry:
    """The registry of a URI: a folder on our storage (default: `_models/` in the default storage path), "mlflow" (by
    MLFLOW_TRACKING_URI), or "mlflow:" and MLflow's tracking URI."""
    uri = check_registry(uri) if uri is not None else None
    if uri is not None and is_mlflow(uri):
        from plugin_core.registry.mlflow import MLflowRegistry

        return MLflowRegistry(uri.partition(":")[2] or None)
    from plugin_core.registry.files import FileRegistry

    return FileRegistry(Location.of(uri or default_registry(), "registry"))


def default_registry(storage_path: str | None = None) -> str:
    return Location.of(storage_path or default_storage_path()).child(FOLDER).uri


def promote(
    result: Any,
    name: str,
    alias: str = CHAMPION,
    *,
    registry: str | None = None,
    dataset: str | None = None,
    expected: int | None = None,
    force: bool = False,
) -> ModelVersion:
    """Register the result's checkpoint under `name` and let `alias` stand for it. Promoting what stands there already does
    nothing, so a retry is safe.

    `result`: an evaluation's, a training's or a search's (or its JSON), or a checkpoint. `dataset`: the fingerprint of the
    data that it was trained on. `expected`: the version at which the alias has to be (0: none yet); by default, where an
    evaluation compared it to a checkpoint, that one's.

    Raises PromotionRefusedError for an evaluation that did not pass, AliasMovedError where the alias is not at what was
    expected; `force` promotes all the same.
    """
    _check_names(name, alias)
    model, evaluation = _model(result, name, dataset)
    if evaluation is not None and not evaluation.passed and not force:
        raise PromotionRefusedError(
            f"result: got an evaluation that did not pass ({evaluation.why}); expected one that did, or force=True"
        )
    models = open_registry(registry)
    current = models.get(name, alias)
    if current is not None and current.checkpoint == model.checkpoint:
        return current
    if not force:
        _check_unmoved(current, name, alias, expected, evaluation)
    version = models.register(model)
    pin(version.checkpoint, by=f"model {name} version {version.version}")
    models.move(name, alias, version.version, current.version if current else 0)
    return version


def rollback(name: str, alias: str = CHAMPION, *, registry: str | None = None) -> ModelVersion:
    """Let the alias stand for what it stood for before. Raises SpecError where there is nothing to go back to."""
    _check_names(name, alias)
    models = open_registry(registry)
    current = models.get(name, alias)
    before = models.previous(name, alias)
    if current is None or not before:
        raise SpecError(f"alias: got {alias!r} of {name!r}, before which there was nothing; expected one that was moved")
    models.roll_back(name, alias, before, current.version)
    found = models.get(name, alias)
    assert found is not None
    return found


def get_model(name: str, alias: str = CHAMPION, *, registry: str | None = None) -> ModelVersion | None:
    """What the alias of a model stands for; None where nothing was promoted yet."""
    _check_names(name, alias)
    return open_registry(registry).get(name, alias)


def _check_names(name: str, alias: str) -> None:
    check_model_name("name", name)
    check_model_name("alias", alias)


def _model(result: Any, name: str, dataset: str | None) -> tuple[ModelVersion, EvaluationResult | None]:
    if isinstance(result, dict) and "kind" in result:
        result = parse_result(result)
    if isinstance(result, EvaluationResult):
        if result.checkpoint is None:
            raise SpecError("result: got an evaluation without a checkpoint; expected one of a checkpoint")
        checkpoint, evaluation = result.checkpoint.uri, result
        metrics = {key: value for key, value in result.metrics.items() if isinstance(value, (int, float))}
    elif isinstance(result, (TrainResult, TuneResult)):
        reference = getattr(result, "best_checkpoint", None) or result.checkpoint
        if reference is None:
            raise SpecError("result: got one without a checkpoint; expected one of a training that reported one")
        checkpoint, evaluation, metrics = reference.uri, None, {}
    else:
        try:
            checkpoint, evaluation, metrics = CheckpointRef.model_validate(result).uri, None, {}
        except ValueError as exc:
            raise SpecError(f"result: got {str(result)[:80]!r}; expected a result, or a checkpoint's URI") from exc
    home = home_of(checkpoint)
    return (
        ModelVersion(
            name=name,
            checkpoint=checkpoint,
            run=home.uri if home else None,
            evaluation=evaluation.run.uri if evaluation else None,
            metrics=metrics,
            dataset=dataset,
        ),
        evaluation,
    )


def _check_unmoved(
    current: ModelVersion | None, name: str, alias: str, expected: int | None, evaluation: EvaluationResult | None
) -> None:
    at = current.version if current else 0
    if expected is not None and at != expected:
        raise AliasMovedError(f"alias: {alias!r} of {name!r} moved meanwhile, from version {expected} to {at}")
    compared = evaluation.compared_to if evaluation is not None else None
    if expected is not None or compared is None or current is None:
        return
    if compared not in (current.checkpoint, current.evaluation):
        raise AliasMovedError(
            f"alias: {alias!r} of {name!r} is at version {at} ({current.checkpoint}), but the evaluation compared to"
            f" {compared}: the alias moved meanwhile; expected an evaluation against the present one, or force=True"
        )
