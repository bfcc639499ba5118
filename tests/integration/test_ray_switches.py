"""Ray Train's less common switches on a real head: validation, callbacks, how data is handed out, determinism."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from devtools import switches
from devtools.chaos import Running
from plugin_core import LocalCluster, RunConfig, TrainSpec, run
from plugin_core.errors import UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader
from plugin_core.specs import CheckpointConfig


def spec_at(storage: Path, name: str = "train", **fields: Any) -> TrainSpec:
    run_config = RunConfig(name=name, storage_path=str(storage), **fields.pop("run_config", {}))
    return TrainSpec(**{"framework": "python", "run_config": run_config, **fields})


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    for number in range(4):
        table = pa.table({"id": list(range(10 * number, 10 * number + 10))})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet")
    return folder


@pytest.mark.slow
def test_validated_checkpoints_rank_by_their_validation(tmp_path: Path, cluster: LocalCluster) -> None:
    """The best one by what the validation found; one that fails is a warning. A callback that fails is one, too."""
    lines = tmp_path / "lines"
    spec = spec_at(
        tmp_path,
        train_loop_per_worker=switches.validating_loop,
        train_loop_config={"epochs": 3},
        validation={"fn": switches.validate, "fn_kwargs": {"fail_at": 2}},
        run_config={
            "checkpoint_config": CheckpointConfig(checkpoint_score_attribute="accuracy"),
            "callbacks": [switches.Notify(str(lines)), "devtools.switches:Marks"],
        },
        runtime_env={"env_vars": {"RAYTRAIN_TEST_NOTES": str(tmp_path / "marks")}},
    )
    running = Running(spec, cluster)
    result = running.result()
    assert result.best_score == 11
    assert result.best_checkpoint.uri.endswith("_000002")
    assert result.metrics == {"epoch": 2, "loss": pytest.approx(1 / 3)}
    assert result.warnings == [
        "run_config.checkpoint_config.checkpoint_score_attribute: 1 of 3 checkpoints have no numeric 'accuracy' and rank"
        " last",
        "run_config.callbacks.0: Notify.after_report raised ConnectionError: nobody listens; the training went on",
        "validation: that of checkpoint_a001_000003 failed; its error is in the job's log",
    ]
    ended = [entry for entry in JournalReader(RunDir.at(result.run.uri)) if entry.get("phase") == "validated"]
    assert [(entry["index"], entry["status"], entry["metrics"]) for entry in ended] == [
        (1, "validated", {"accuracy": 0, "strange": None}),
        (2, "validated", {"accuracy": 11, "strange": None}),
        (3, "failed", {}),
    ]
    assert [line.split()[0] for line in lines.read_text().splitlines()] == ["0", "1", "2"]
    assert (tmp_path / "marks").read_text().split() == ["0", "1", "2"], "a class by its name is called too"
    told = running.texts("phase")
    assert "validated checkpoint_a001_000002: accuracy=11 strange=None" in told
    assert "the validation of checkpoint_a001_000003 failed" in told


@pytest.mark.slow
def test_data_is_handed_out_as_the_fields_say(tmp_path: Path, rows: Path, cluster: LocalCluster) -> None:
    def ids(name: str, **dataset: Any) -> list[list[int]]:
        spec = spec_at(
            tmp_path,
            name,
            train_loop_per_worker=switches.order_loop,
            train_loop_config={"epochs": 2},
            datasets={"train": {"path": str(rows), "format": "parquet", **dataset}},
        )
        found = JournalReader(RunDir.at(run(spec, cluster).run.uri))
        return [entry["metrics"]["ids"] for entry in found if "report" in entry]

    assert ids("ordered", preserve_order=True, resource_limits={"CPU": 1.0}) == [list(range(40))] * 2
    same, again = ids("seeded", shuffle_seed=3), ids("seeded-too", shuffle_seed=3)
    assert same == again == [same[0]] * 2 != [list(range(40))] * 2
    first, second = ids("reshuffled", shuffle_seed=3, reshuffle=True)
    assert ids("reshuffled-too", shuffle_seed=3, reshuffle=True) == [first, second]
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second


@pytest.mark.slow
def test_a_data_config_of_the_users_own_decides(tmp_path: Path, rows: Path, cluster: LocalCluster) -> None:
    spec = spec_at(
        tmp_path,
        train_loop_per_worker=switches.order_loop,
        train_loop_config={"epochs": 1},
        datasets={"train": {"path": str(rows), "format": "parquet"}},
        data_config=switches.undivided,
        scaling_config={"num_workers": 2},
        report_all_ranks=True,
    )
    result = run(spec, cluster)
    (entry,) = (entry for entry in JournalReader(RunDir.at(result.run.uri)) if "report" in entry)
    assert [sorted(rank["ids"]) for rank in entry["ranks"]] == [list(range(40))] * 2


@pytest.mark.slow
def test_two_trainings_of_torch_with_one_seed_are_equal_to_the_bit(tmp_path: Path, cluster: LocalCluster) -> None:
    def weights(name: str, seed: int) -> Any:
        spec = spec_at(
            tmp_path,
            name,
            framework="torch",
            train_loop_per_worker=switches.deterministic_loop,
            scaling_config={"num_workers": 2},
            seed=seed,
            deterministic=True,
        )
        metrics = run(spec, cluster).metrics
        assert metrics["deterministic"] is True
        return metrics["weights"]

    first = weights("first", 7)
    assert weights("second", 7) == first
    assert weights("third", 8) != first


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "callback"), [("xgboost", "xgboost_notes"), ("lightgbm", "lightgbm_notes")])
def test_a_framework_calls_its_own_callbacks_in_each_worker(
    tmp_path: Path, cluster: LocalCluster, framework: str, callback: str
) -> None:
    spec = trees_at(tmp_path, framework, [f"devtools.switches:{callback}"])
    assert run(spec, cluster).reports == 3
    assert sorted((tmp_path / "notes").read_text().split()) == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.slow
def test_a_framework_callback_that_raises_fails_the_step_as_the_users_code(tmp_path: Path, cluster: LocalCluster) -> None:
    with pytest.raises(UserCodeError, match="the rounds are over") as caught:
        run(trees_at(tmp_path, "xgboost", ["devtools.switches:xgboost_failing"]), cluster)
    assert not caught.value.retryable


def trees_at(folder: Path, framework: str, callbacks: list[Any]) -> TrainSpec:
    table = pa.table({"x": [float(n) for n in range(40)], "y": [n % 2 for n in range(40)]})
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    return spec_at(
        folder,
        framework=framework,
        params={"objective": "binary:logistic" if framework == "xgboost" else "binary"},
        label_column="y",
        num_boost_round=3,
        scaling_config={"num_workers": 2},
        datasets={"train": str(folder / "rows.parquet")},
        framework_callbacks=callbacks,
        runtime_env={"env_vars": {"RAYTRAIN_TEST_NOTES": str(folder / "notes")}},
    )


@pytest.mark.slow
def test_torchft_replaces_a_killed_replica_while_the_other_goes_on(tmp_path: Path, cluster: LocalCluster) -> None:
    """The loop is that of Ray's packaged example."""
    trail = tmp_path / "trail"
    config = {"num_steps": 40, "training_requires_all_workers": False, "die_at": 10}
    spec = spec_at(
        tmp_path,
        framework="torch",
        train_loop_per_worker=switches.torchft_loop,
        train_loop_config={**config, "once": str(tmp_path / "once"), "trail": str(trail)},
        scaling_config={"num_workers": 2},
        torch_config={"backend": "gloo", "fault_tolerance": "torchft", "lighthouse": {"min_replicas": 1}},
    )
    result = run(spec, cluster)
    assert result.run.attempt == 1
    lines = [[int(number) for number in line.split()] for line in trail.read_text().splitlines()]
    first, second = ({pid for rank, pid, _ in lines if rank == mine} for mine in (0, 1))
    assert (len(first), len(second)) == (1, 2), "rank 0 was never restarted"
    for pid in first | {lines[-1][1]}:
        steps = [step for _, each, step in lines if each == pid]
        assert steps == sorted(steps)
        assert steps[-1] >= 40
