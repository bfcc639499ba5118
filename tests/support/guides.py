"""The patterns of Ray Train's and Ray Tune's user guides, each as a loop with the guide's own imports and calls."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import ray.train
from ray import tune
from ray.train import Checkpoint, CheckpointUploadMode


def fails_once(config: dict[str, Any], epoch: int) -> None:
    """Interrupts the guide's training: the first worker group, before epoch 1's report."""
    mark = Path(config["mark"])
    if epoch == 1 and ray.train.get_context().get_world_rank() == 0 and not mark.exists():
        mark.touch()
        os._exit(1)


def from_rank_0(config: dict[str, Any]) -> None:
    """Saving and loading checkpoints: rank 0's, of a model that all ranks have."""
    import torch
    from ray.train.torch import prepare_model

    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            model.module.load_state_dict(torch.load(os.path.join(checkpoint_dir, "model.pt")))
            optimizer.load_state_dict(torch.load(os.path.join(checkpoint_dir, "optimizer.pt")))
            start_epoch = torch.load(os.path.join(checkpoint_dir, "extra_state.pt"))["epoch"] + 1

    for epoch in range(start_epoch, 3):
        fails_once(config, epoch)
        loss = model(torch.ones(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = {"epoch": epoch, "loss": loss.item(), "start": start_epoch}
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(model.module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
                torch.save(optimizer.state_dict(), os.path.join(temp_checkpoint_dir, "optimizer.pt"))
                torch.save({"epoch": epoch}, os.path.join(temp_checkpoint_dir, "extra_state.pt"))
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            ray.train.report(metrics, checkpoint=checkpoint)


def from_all_ranks(config: dict[str, Any]) -> None:
    """Saving and loading checkpoints: each rank's part, and metadata."""
    rank = ray.train.get_context().get_world_rank()
    steps: list[int] = []
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        assert checkpoint.get_metadata()["format"] == "parts"
        with checkpoint.as_directory() as checkpoint_dir:
            steps = json.loads(Path(checkpoint_dir, f"part-rank={rank}.json").read_text())

    for epoch in range(len(steps), 3):
        fails_once(config, epoch)
        steps.append(10 * rank + epoch)
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            Path(temp_checkpoint_dir, f"part-rank={rank}.json").write_text(json.dumps(steps))
            checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            if rank == 0:
                checkpoint.set_metadata({"format": "parts", "epoch": epoch})
            ray.train.report({"epoch": epoch}, checkpoint=checkpoint)


def uploaded_meanwhile(config: dict[str, Any]) -> None:
    """Checkpoint upload modes: the training continues during the upload."""
    for epoch in range(3):
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            temp_checkpoint_dir = tempfile.mkdtemp()
            Path(temp_checkpoint_dir, "epoch.txt").write_text(str(epoch))
            checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
        ray.train.report({"epoch": epoch}, checkpoint=checkpoint, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)


def in_batches(config: dict[str, Any]) -> None:
    """Data loading: this worker's part of a dataset."""
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(2):
        ids = [int(each) for batch in shard.iter_batches(batch_size=3) for each in batch["id"]]
        ray.train.report({"epoch": epoch, "ids": sorted(ids)})


def with_data_loader(config: dict[str, Any]) -> None:
    """PyTorch: a DataLoader whose rows are distributed over the workers."""
    import torch
    from ray.train.torch import prepare_data_loader, prepare_model
    from torch.utils.data import DataLoader, TensorDataset

    rows = TensorDataset(torch.arange(12.0).reshape(12, 1))
    train_loader = prepare_data_loader(DataLoader(rows, batch_size=3, shuffle=True))
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        if ray.train.get_context().get_world_size() > 1:
            train_loader.sampler.set_epoch(epoch)
        seen = []
        for (batch,) in train_loader:
            optimizer.zero_grad()
            model(batch / 12).square().mean().backward()
            optimizer.step()
            seen += batch.flatten().int().tolist()
        weight = model.module.weight.item()
        ray.train.report({"epoch": epoch, "rows": sorted(seen), "order": seen, "weight": weight})


def with_trainer(config: dict[str, Any]) -> None:
    """Transformers: a Trainer over a dataset of Ray Data, bounded by `max_steps`, with Ray's callback."""
    import torch
    from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    train_ds = ray.train.get_dataset_shard("train").iter_torch_batches(batch_size=4)
    args = TrainingArguments(
        output_dir=config["output_dir"],
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        logging_steps=2,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=BertForSequenceClassification(BertConfig(**sizes)), args=args, train_dataset=train_ds)
    trainer.add_callback(RayTrainReportCallback())
    trainer = prepare_trainer(trainer)
    trainer.train()


def trial(config: dict[str, Any]) -> None:
    """Population based training: a trial saves checkpoints, and continues from one that may be another trial's."""
    start, value = 1, 0.0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            state = json.loads(Path(checkpoint_dir, "checkpoint.json").read_text())
        start, value = state["step"] + 1, state["value"]

    for step in range(start, 4):
        value += config["rate"]
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            Path(temp_checkpoint_dir, "checkpoint.json").write_text(json.dumps({"step": step, "value": value}))
            tune.report({"value": value}, checkpoint=tune.Checkpoint.from_directory(temp_checkpoint_dir))


def who_am_i(config: dict[str, Any]) -> None:
    """What the context says."""
    context = ray.train.get_context()
    names = ("world_rank", "world_size", "local_rank", "local_world_size", "node_rank", "experiment_name")
    found = {name: getattr(context, f"get_{name}")() for name in names}
    ray.train.report({**found, "storage": context.get_storage().storage_fs_path})
