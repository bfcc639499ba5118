"""PyTorch Lightning: a LightningModule and its Trainer, with Ray's strategy, environment and callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from example_flows.digits_steps import build_model
from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="lightning",
    train_loop_per_worker="example_flows.frameworks.lightning:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_module(lr: float) -> Any:
    import lightning
    import torch

    class Digits(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model()

        def training_step(self, batch: Any) -> Any:
            loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            return loss

        def validation_step(self, batch: Any) -> None:
            known = (self.model(batch[0]).argmax(dim=1) == batch[1]).float().mean()
            self.log("accuracy", known, sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=lr)

    return Digits()


def train_loop(config: dict[str, Any]) -> None:
    import lightning
    import ray.train
    import torch
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.set_num_threads(1)
    own = TensorDataset(*data.own_tensors())
    test = TensorDataset(*(torch.as_tensor(part) for part in data.digits("test")))
    trainer = prepare_trainer(
        lightning.Trainer(
            max_epochs=config["epochs"],
            accelerator="auto",
            devices="auto",
            strategy=RayDDPStrategy(),
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
    order = DistributedSampler(own, num_replicas=1, rank=0)  # Lightning sets its epoch, after a resume too
    loaders = DataLoader(own, config["batch_size"], sampler=order, drop_last=True), DataLoader(test, len(test))
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(build_module(config["lr"]), *loaders)
        return
    with checkpoint.as_directory() as folder:
        file = Path(folder, RayTrainReportCallback.CHECKPOINT_NAME)
        trainer.fit(build_module(config["lr"]), *loaders, ckpt_path=str(file))


def evaluate(checkpoint: Any) -> dict[str, float]:
    import torch
    from ray.train.lightning import RayTrainReportCallback

    module = build_module(0.0)
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, RayTrainReportCallback.CHECKPOINT_NAME), map_location="cpu", weights_only=True)
    module.load_state_dict(state["state_dict"])
    return {"accuracy": data.accuracy_of(module.eval().model)}
