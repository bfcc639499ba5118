"""Searching, retraining and the registry as Prefect tasks, against a real Prefect server; the cluster is a named fake."""

import asyncio
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.objects import TaskRun

from devtools.chaos import wait_until
from devtools.steps import counting_loop, evaluate
from plugin_core import Evaluation, ModelVersion, RetrainSpec, RunConfig, TrainSpec, TuneSpec, best_train_spec, get_model
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import PromotionRefusedError
from plugin_core.registry.api import open_registry
from plugin_core.specs.results import EvaluationResult, RetrainResult, RunRef, TuneResult
from prefect_integration import aretrain, atune, promote, retrain, rollback, tune

pytestmark = pytest.mark.usefixtures("prefect_api")


def search(storage: Path) -> TuneSpec:
    return TuneSpec(
        train=TrainSpec(framework="python", train_loop_per_worker=counting_loop),
        param_space={"train_loop_config": {"epochs": {"grid_search": [1, 2]}}},
        metric="loss",
        mode="min",
        run_config=RunConfig(storage_path=str(storage)),
    )


def retraining(storage: Path) -> RetrainSpec:
    return RetrainSpec(
        model="digits",
        train=TrainSpec(framework="python", train_loop_per_worker=counting_loop),
        evaluate=Evaluation(evaluate=evaluate, thresholds={"accuracy": {"min": 0.9}}),
        run_config=RunConfig(storage_path=str(storage)),
    )


def test_tune_and_retrain_return_what_they_are_typed_to(tmp_path: Path) -> None:
    with FakeCluster(metrics={"loss": 0.5}) as cluster:

        @flow
        def both() -> tuple[TuneResult, RetrainResult]:
            return tune(search(tmp_path), cluster), retrain(retraining(tmp_path), cluster)

        @flow
        async def awaited() -> tuple[TuneResult, RetrainResult]:
            return await atune(search(tmp_path), cluster), await aretrain(retraining(tmp_path), cluster)

        for found, outcome in (both(), asyncio.run(awaited())):
            assert (found.trials, found.metrics) == ({"finished": 2, "stopped": 0, "failed": 0}, {"loss": 0.5})
            assert best_train_spec(found, search(tmp_path).train).train_loop_per_worker is counting_loop
            assert (outcome.outcome, outcome.champion) == ("promoted", 1)
        assert cluster.submits == 4


def test_an_alias_moves_once_in_a_flow_run(tmp_path: Path) -> None:
    registry, checkpoints = str(tmp_path / "models"), [str(tmp_path / name) for name in ("one", "two")]
    for place in checkpoints:
        Path(place).mkdir()
        Path(place, "state.json").touch()
    executions = []

    @flow(retries=1)
    def moves() -> ModelVersion:
        for place in checkpoints:
            promote(place, "digits", registry=registry)
        version = rollback("digits", registry=registry)
        executions.append(version.version)
        if len(executions) == 1:
            raise RuntimeError("and once more")
        return version

    assert moves().version == 1
    assert executions == [1, 1]
    champion = get_model("digits", registry=registry)
    assert champion is not None
    assert (champion.version, champion.checkpoint) == (1, checkpoints[0])
    assert [model.version for model in open_registry(registry).versions("digits")] == [1, 2]


def test_a_refused_promotion_is_not_tried_again(tmp_path: Path) -> None:
    run, why = RunRef(uri=str(tmp_path / "run"), name="run", attempt=1), {"accuracy": "0.1 < min 0.9"}
    bad = EvaluationResult(run=run, metrics={}, passed=False, checkpoint=str(tmp_path), failed=why)

    @flow
    def refused() -> None:
        promote.with_options(retries=3, retry_delay_seconds=0)(bad, "digits", registry=str(tmp_path))

    with pytest.raises(PromotionRefusedError, match=r"did not pass \(accuracy: 0.1 < min 0.9\)"):
        refused()
    with get_client(sync_client=True) as client:

        def ended() -> list[TaskRun]:
            found = client.read_task_runs(flow_filter=FlowFilter(name={"any_": ["refused"]}))
            return [each for each in found if each.state is not None and each.state.is_final()]

        (tried,) = wait_until(ended)  # the server learns of task runs from events, after the flow run's end
    assert tried.run_count == 1
