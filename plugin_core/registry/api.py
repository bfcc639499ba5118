"""The model registry: maps a model name and an alias ("champion") to a checkpoint, with its origin and the alias's history.

`promote` and `rollback` run in the orchestrator, without a Ray job. A registry is a folder on our storage (the default) or
MLflow's.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from plugin_core.errors import AliasMovedError, PromotionRefusedError, SpecError
from plugin_core.registry.base import ModelVersion, Registry
from plugin_core.runs.age import made_at
from plugin_core.runs.pins import home_of, pin
from plugin_core.specs.json_values import is_time
from plugin_core.specs.parse import parse_result
from plugin_core.specs.references import REGISTRY_FOLDER, check_model_name, check_registry, registry_service
from plugin_core.specs.results import CheckpointRef, EvaluationResult, TrainResult, TuneResult
from plugin_core.storage.location import Location, default_storage_path
from plugin_core.storage.plugins import REGISTRIES, plugin

CHAMPION = "champion"


def open_registry(uri: str | None = None) -> Registry:
    """Open the registry at a URI: a folder on our storage (default: `_models/` in the default storage path), "mlflow" (uses
    MLFLOW_TRACKING_URI), "mlflow:" followed by MLflow's tracking URI, or a plugin's name and what that plugin takes."""
    service, where = registry_service(check_registry(uri)) if uri is not None else ("", default_registry())
    if service == "mlflow":
        from plugin_core.registry.mlflow import MLflowRegistry

        return MLflowRegistry(where or None)
    if service:
        opened: Registry = plugin(REGISTRIES, service, "registry")(where)
        return opened
    from plugin_core.registry.files import FileRegistry

    return FileRegistry(Location.of(where, "registry"))


def default_registry(storage_path: str | None = None) -> str:
    return Location.of(storage_path or default_storage_path()).child(REGISTRY_FOLDER).uri


def promote(
    result: Any,
    name: str,
    alias: str = CHAMPION,
    *,
    registry: str | None = None,
    dataset: str | None = None,
    expected: int | None = None,
    force: bool = False,
    allow_older: bool = False,
) -> ModelVersion:
    """Register the result's checkpoint under `name` and point `alias` to it. Returns the version that the alias points to
    afterwards. Idempotent, so a retry is safe.

    A checkpoint that is older than the alias's is not promoted, unless `allow_older`: the alias stays, and `kept` of the
    returned version says so. A checkpoint is as old as the run that first made it, however often that run repeats.

    :param result: that of an evaluation, a training or a search (or its JSON), or a checkpoint.
    :param name: the model's name in the registry.
    :param alias: what points to the version, for example `champion`.
    :param registry: a path, a URI or `mlflow`; None: `_models/` in the default storage path.
    :param dataset: the fingerprint of the training data.
    :param expected: the version that the alias must point to now (0: none yet); by default that of the checkpoint that the
        evaluation compared to, if any.
    :param force: promote whatever speaks against it.
    :param allow_older: promote a checkpoint that is older than the alias's.

    Raises PromotionRefusedError for an evaluation that did not pass, AliasMovedError if the alias does not point to the
    expected version; `force` promotes anyway.
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
    if current is not None and not (force or allow_older) and (why := why_older(current, model.made)):
        return current.model_copy(update={"kept": f"the {alias} of {name} stays version {current.version}: {why}"})
    if not force:
        _check_unmoved(current, name, alias, expected, evaluation)
    version = models.register(model)
    pin(version.checkpoint, by=f"model {name} version {version.version}")
    models.move(name, alias, version.version, current.version if current else 0)
    return version


def rollback(name: str, alias: str = CHAMPION, *, registry: str | None = None) -> ModelVersion:
    """Point the alias back to its previous version. Raises SpecError if there is none."""
    _check_names(name, alias)
    models = open_registry(registry)
    current = models.get(name, alias)
    before = models.previous(name, alias)
    if current is None or not before:
        raise SpecError(f"alias: got {alias!r} of {name!r}, which has no previous version; expected one that was moved")
    models.roll_back(name, alias, before, current.version)
    found = models.get(name, alias)
    assert found is not None
    return found


def get_model(name: str, alias: str = CHAMPION, *, registry: str | None = None) -> ModelVersion | None:
    """Return the version that a model's alias points to; None if nothing was promoted yet."""
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
            raise SpecError("result: got a result without a checkpoint; expected one of a training that reported one")
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
            made=made_at(checkpoint),
        ),
        evaluation,
    )


def why_older(champion: ModelVersion, made: float | None) -> str:
    """Why a checkpoint made at that time would be a step back from the champion; "" if it would not be, or if that is
    unknown."""
    if made is None or champion.made is None or made >= champion.made or not (is_time(made) and is_time(champion.made)):
        return ""
    ours, its = (f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC" for time in (made, champion.made))
    return f"the new checkpoint was made at {ours}, the current one at {its}; allow_older=True promotes it anyway"


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
            f" {compared}: the alias moved meanwhile; expected an evaluation against the current one, or force=True"
        )
