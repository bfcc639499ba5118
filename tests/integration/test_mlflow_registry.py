"""Promote and roll back in a real MLflow's registry; and in a folder on a real S3 API."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from devtools.servers import mlflow_server
from plugin_core import get_model, promote, rollback
from plugin_core.errors import AliasMovedError, SpecError, StorageError
from plugin_core.registry.api import open_registry
from plugin_core.storage.location import Location


@pytest.fixture(scope="module", params=["mlflow", "s3"])
def registry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "s3":
        yield Location.of(request.getfixturevalue("s3")).child("models").uri
        return
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as uri:
        yield f"mlflow:{uri}"


def checkpoint(tmp_path: Path, name: str) -> str:
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    (folder / "weights").write_text("w")
    return str(folder)


def test_promotions_move_the_alias_and_rollbacks_go_back(registry: str, tmp_path: Path) -> None:
    assert get_model("digits", registry=registry) is None
    one, two, three = (checkpoint(tmp_path, name) for name in ("one", "two", "three"))
    first = promote(one, "digits", registry=registry, dataset="monday")
    assert (first.version, first.checkpoint, first.dataset) == (1, one, "monday")
    assert promote(one, "digits", registry=registry) == first
    assert promote(one, "digits", "staging", registry=registry).version == 1
    assert promote(two, "digits", registry=registry).version == 2
    assert promote(three, "digits", registry=registry, expected=2).version == 3
    with pytest.raises(AliasMovedError, match="moved meanwhile, from version 2 to 3"):
        promote(one, "digits", registry=registry, expected=2)
    with pytest.raises(AliasMovedError, match="moved meanwhile, from version 2 to 3"):
        open_registry(registry).move("digits", "champion", 1, expected=2)
    assert [rollback("digits", registry=registry).version for _ in range(2)] == [2, 1]
    with pytest.raises(SpecError, match="which has no previous version"):
        rollback("digits", registry=registry)
    assert get_model("digits", registry=registry) == first


@pytest.mark.parametrize("survived", [0, 1])
def test_a_rollback_goes_back_after_a_promotion_that_was_killed_between_two_requests(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    name = f"killed-{survived}"
    one, two = checkpoint(tmp_path, "one"), checkpoint(tmp_path, "two")
    promote(one, name, registry=registry)
    requests: list[str] = []

    def killed(request: Callable[..., Any]) -> Callable[..., Any]:
        def send(*given: Any) -> Any:
            requests.append(request.__name__)
            if len(requests) > survived:
                raise KeyboardInterrupt
            return request(*given)

        return send

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        for request in (MlflowClient.set_registered_model_alias, MlflowClient.set_model_version_tag):
            patch.setattr(MlflowClient, request.__name__, killed(request))
        promote(two, name, registry=registry)
    assert len(requests) == (survived + 1 if registry.startswith("mlflow") else 0)
    assert promote(two, name, registry=registry).version == 2
    assert rollback(name, registry=registry).version == 1


def test_a_registry_that_does_not_answer_is_an_error_that_may_be_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(StorageError, match="registry: the MLflow request failed") as caught:
        promote(checkpoint(tmp_path, "one"), "digits", registry="mlflow:http://127.0.0.1:9")
    assert caught.value.retryable
