"""PyTorch Lightning with FSDP: each worker holds a part of the model, and writes that part of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from example_flows.frameworks import data, lightning
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="lightning",
    train_loop_per_worker="example_flows.frameworks.lightning_fsdp:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_module(lr: float) -> Any:
    from ray.train.torch import get_device
    from torch.distributed.fsdp.wrap import wrap

    class Sharded(type(lightning.build_module(lr))):  # type: ignore[misc]
        def configure_model(self) -> None:
            # on CPUs Lightning does not tell FSDP the device, and FSDP would look for a GPU
            self.model = wrap(self.model, device_id=get_device())

    return Sharded()


def train_loop(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from lightning import Trainer
    from ray.train.lightning import RayFSDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.set_num_threads(1)
    own = TensorDataset(*data.own_tensors())
    test = TensorDataset(*(torch.as_tensor(part) for part in data.digits("test")))
    trainer = prepare_trainer(
        Trainer(
            max_epochs=config["epochs"],
            accelerator="auto",
            devices="auto",
            strategy=RayFSDPStrategy(state_dict_type="sharded"),
            plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback()],
            use_distributed_sampler=False,  # each worker has its own rows already
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            num_sanity_val_steps=0,
            logger=False,
        )
    )
    module = build_module(config["lr"])
    order = DistributedSampler(own, num_replicas=1, rank=0)  # Lightning sets its epoch, after a resume too
    loaders = DataLoader(own, config["batch_size"], sampler=order, drop_last=True), DataLoader(test, len(test))
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(module, *loaders)
        return
    with checkpoint.as_directory() as folder:
        trainer.fit(module, *loaders, ckpt_path=str(Path(folder, RayTrainReportCallback.CHECKPOINT_NAME)))


def evaluate(checkpoint: Any) -> dict[str, float]:
    import ray.train
    from ray.train.lightning import RayTrainReportCallback

    from plugin_core.loops.sharded import load

    with checkpoint.as_directory() as folder:
        parts = ray.train.Checkpoint.from_directory(Path(folder, RayTrainReportCallback.CHECKPOINT_NAME))
        module = load(parts, lightning.build_module(0.0))
    return {"accuracy": data.accuracy_of(module.model)}
