"""The patterns of Ray Train's user guides run as they are written there: the same imports, the same calls.

The loops are in `tests/support/guides.py`.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from plugin_core import LocalCluster, RunConfig, TrainSpec, TuneSpec, run
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from plugin_core.specs.results import TrainResult
from tests.support import guides


def spec_of(loop: Any, folder: Path, **fields: Any) -> TrainSpec:
    run_config = RunConfig(name="guide", storage_path=str(folder))
    given = {
        "framework": "torch",
        "train_loop_config": {"mark": str(folder / "mark")},
        "scaling_config": {"num_workers": 2},
    }
    return TrainSpec(train_loop_per_worker=loop, run_config=run_config, report_all_ranks=True, **{**given, **fields})


def ranks(result: TrainResult) -> list[list[dict[str, Any]]]:
    """Each report's metrics, by rank."""
    return [report["ranks"] for report in read_reports(RunDir.at(result.run.uri))]


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Twelve rows, in four files of a folder."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for number in range(4):
        part = range(3 * number, 3 * number + 3)
        columns = {"id": list(part), "input_ids": [[n % 16] * 4 for n in part], "labels": [n % 2 for n in part]}
        pyarrow.parquet.write_table(pa.table(columns), folder / f"{number}.parquet")
    return str(folder)


@pytest.mark.slow
def test_the_context_says_who_a_worker_is(cluster: LocalCluster, tmp_path: Path) -> None:
    result = run(spec_of(guides.who_am_i, tmp_path, framework="python"), cluster)
    (found,) = ranks(result)
    both = {"world_size": 2, "local_world_size": 2, "node_rank": 0, "experiment_name": "guide", "storage": str(tmp_path)}
    assert found == [{"world_rank": rank, "local_rank": rank, **both} for rank in range(2)]


@pytest.mark.slow
def test_a_checkpoint_of_rank_0_is_restored_after_a_lost_worker(cluster: LocalCluster, tmp_path: Path) -> None:
    import torch

    result = run(spec_of(guides.from_rank_0, tmp_path), cluster)
    reported = [both[0] for both in ranks(result)]
    assert [(metrics["epoch"], metrics["start"]) for metrics in reported] == [(0, 0), (1, 1), (2, 1)]
    first = reported[0]["loss"]
    # each step halves the output
    assert [metrics["loss"] for metrics in reported] == pytest.approx([first, first / 4, first / 16], rel=1e-4)
    assert result.checkpoint is not None
    with result.checkpoint.to_ray().as_directory() as folder:
        assert torch.load(Path(folder, "extra_state.pt")) == {"epoch": 2}
        assert set(torch.load(Path(folder, "model.pt"))) == {"weight", "bias"}


@pytest.mark.slow
def test_each_ranks_part_of_a_checkpoint_and_its_metadata_are_restored(cluster: LocalCluster, tmp_path: Path) -> None:
    result = run(spec_of(guides.from_all_ranks, tmp_path, framework="python"), cluster)
    assert [both[0]["epoch"] for both in ranks(result)] == [0, 1, 2]
    assert result.checkpoint is not None
    checkpoint = result.checkpoint.to_ray()
    assert {"format": "parts", "epoch": 2}.items() <= checkpoint.get_metadata().items()
    with checkpoint.as_directory() as folder:
        parts = [json.loads(Path(folder, f"part-rank={rank}.json").read_text()) for rank in range(2)]
    assert parts == [[0, 1, 2], [10, 11, 12]]


@pytest.mark.slow
def test_checkpoints_that_are_uploaded_meanwhile_are_all_there(cluster: LocalCluster, tmp_path: Path) -> None:
    result = run(spec_of(guides.uploaded_meanwhile, tmp_path, framework="python"), cluster)
    assert result.reports == 3
    assert result.checkpoint is not None
    with result.checkpoint.to_ray().as_directory() as folder:
        assert Path(folder, "epoch.txt").read_text() == "2"


@pytest.mark.slow
def test_each_worker_gets_its_part_of_a_dataset_in_batches(cluster: LocalCluster, tmp_path: Path, rows: str) -> None:
    spec = spec_of(guides.in_batches, tmp_path, framework="python", datasets={"train": {"path": rows, "format": "parquet"}})
    for first, second in (both for both in ranks(run(spec, cluster))):
        assert (len(first["ids"]), len(second["ids"])) == (6, 6)
        assert sorted(first["ids"] + second["ids"]) == list(range(12))


@pytest.mark.slow
def test_a_data_loader_gives_each_worker_other_rows_and_the_model_stays_one(cluster: LocalCluster, tmp_path: Path) -> None:
    reported = ranks(run(spec_of(guides.with_data_loader, tmp_path), cluster))
    for first, second in reported:
        assert sorted(first["rows"] + second["rows"]) == list(range(12))
        assert first["weight"] == second["weight"]
    assert reported[0][0]["order"] != reported[1][0]["order"], "set_epoch shuffles anew"


@pytest.mark.slow
def test_a_trainer_bounded_by_steps_reports_with_rays_callback(cluster: LocalCluster, tmp_path: Path, rows: str) -> None:
    from transformers import BertForSequenceClassification

    fields = {"framework": "transformers", "train_loop_config": {"output_dir": str(tmp_path / "out")}}
    datasets = {"train": {"path": rows, "format": "parquet"}}
    result = run(spec_of(guides.with_trainer, tmp_path, datasets=datasets, **fields), cluster)
    assert [both[0]["step"] for both in ranks(result)] == [2, 4]
    assert result.checkpoint is not None
    with result.checkpoint.to_ray().as_directory() as folder:
        assert json.loads(Path(folder, "checkpoint", "trainer_state.json").read_text())["global_step"] == 4
        logging.getLogger("transformers").setLevel(logging.ERROR)
        model = BertForSequenceClassification.from_pretrained(Path(folder, "checkpoint"))
    assert model.config.hidden_size == 8


@pytest.mark.slow
def test_a_trial_goes_on_from_the_checkpoint_that_pbt_hands_over(cluster: LocalCluster, tmp_path: Path) -> None:
    spec = TuneSpec(
        train=TrainSpec(framework="python", train_loop_per_worker=guides.trial, train_loop_config={}),
        param_space={"train_loop_config": {"rate": {"grid_search": [0.0, 10.0]}}},
        metric="value",
        mode="max",
        max_concurrent_trials=2,
        scheduler={
            "type": "pbt",
            "perturbation_interval": 2,
            "quantile_fraction": 0.5,
            "hyperparam_mutations": {"train_loop_config": {"rate": {"choice": [5.0, 20.0]}}},
            "synch": True,
        },
        run_config=RunConfig(name="guide", storage_path=str(tmp_path)),
    )
    result = run(spec, cluster)
    table = json.loads(Path(result.table).read_text())
    assert len(table) == 2
    assert min(row["value"] for row in table) > 20, "the worse trial goes on from what the better one had after two steps"
    assert result.checkpoint is not None
    with result.checkpoint.to_ray().as_directory() as folder:
        state = json.loads(Path(folder, "checkpoint.json").read_text())
    assert state == {"step": 3, "value": result.metrics["value"]}
