"""Ray's report callbacks, made safe for checkpoints that several ranks write."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train

from plugin_core.driver.train.frameworks import report_callbacks


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[set[str]]]:
    """The files of each report."""
    found: list[set[str]] = []

    def report(metrics: dict[str, Any], checkpoint: Any = None, **options: Any) -> None:
        folder = Path(checkpoint.path)
        found.append({str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()})

    monkeypatch.setattr(ray.train, "report", report)
    return found


def test_transformers_checkpoint_is_copied_once_all_ranks_have_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reported: list[set[str]]
) -> None:
    from ray.train.huggingface.transformers import RayTrainReportCallback

    from plugin_core.loops import transformers as loop

    monkeypatch.setattr(RayTrainReportCallback, "on_save", RayTrainReportCallback.on_save)
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "rng_state_1.pth").touch()
    monkeypatch.setattr(loop, "wait_for_all", (folder / "model.safetensors").touch)
    report_callbacks.prepare("transformers")
    RayTrainReportCallback().on_save(SimpleNamespace(output_dir=str(tmp_path)), SimpleNamespace(log_history=[]), None)
    assert reported == [{"checkpoint/rng_state_1.pth", "checkpoint/model.safetensors"}]


@pytest.mark.parametrize(
    ("same_disk", "local_rank", "part"),
    [(False, 0, {"checkpoint.ckpt"}), (False, 1, set()), (True, 0, set())],
    ids=["first of another node", "second of another node", "on rank 0's node"],
)
def test_lightnings_parts_of_another_node_are_reported_there(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    reported: list[set[str]],
    same_disk: bool,
    local_rank: int,
    part: set[str],
) -> None:
    """Every rank's part is written under rank 0's path: on rank 0's node rank 0 reports it, on another the first rank."""
    from ray.train.lightning import RayFSDPStrategy, RayTrainReportCallback

    monkeypatch.setattr(RayTrainReportCallback, "on_train_epoch_end", RayTrainReportCallback.on_train_epoch_end)
    monkeypatch.setattr(ray.train, "get_context", lambda: SimpleNamespace(get_local_rank=lambda: local_rank))
    report_callbacks.prepare("lightning")
    of_rank_0, own = tmp_path / "world_rank=0", tmp_path / "own"
    (of_rank_0 / "0").mkdir(parents=True)
    (of_rank_0 / "0" / "left by a killed group").touch()

    class Strategy(RayFSDPStrategy):
        def __init__(self) -> None:
            pass

        def broadcast(self, path: str, src: int = 0) -> str:
            mark = of_rank_0 / Path(path).name
            if same_disk:
                mark.mkdir()
            return str(mark)

        def barrier(self, name: str | None = None) -> None:
            pass

    callback = RayTrainReportCallback.__new__(RayTrainReportCallback)
    callback.tmpdir_prefix, callback.checkpoint_upload_mode, callback.validation = str(own), None, False
    for epoch in range(2):
        epochs = of_rank_0 / str(epoch)

        def save(path: str, weights_only: bool, epochs: Path = epochs) -> None:
            epochs.mkdir(parents=True, exist_ok=True)
            (epochs / "checkpoint.ckpt").touch()

        trainer = SimpleNamespace(
            strategy=Strategy(), current_epoch=epoch, global_step=epoch, callback_metrics={}, save_checkpoint=save
        )
        callback.on_train_epoch_end(trainer, None)
    assert reported == [part, part]
