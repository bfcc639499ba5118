"""PyTorch Lightning with DeepSpeed ZeRO-3: model, gradients and optimizer in parts, one per worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from example_flows.frameworks import data, deepspeed
from example_flows.frameworks.lightning import build_module
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="lightning",
    train_loop_per_worker="example_flows.frameworks.lightning_deepspeed:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003},
    deepspeed_config=deepspeed.SPEC.deepspeed_config,
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_strategy(config: dict[str, Any]) -> Any:
    import torch
    from ray.train.lightning import RayDeepSpeedStrategy

    if torch.cuda.is_available():
        return RayDeepSpeedStrategy(config=config)

    class OnCpus(RayDeepSpeedStrategy):
        """Lightning's own strategy accepts only CUDA devices, though DeepSpeed trains on CPUs too."""

        root_device = torch.device("cpu", 0)  # the index is required

        def setup_environment(self) -> None:
            self.accelerator.setup_device(self.root_device)
            self.set_world_ranks()
            self._init_deepspeed_distributed()

    deepspeed.build_no_operators()
    return OnCpus(config=config)


def train_loop(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from lightning import Trainer
    from ray.train.lightning import RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.set_num_threads(1)
    own = TensorDataset(*data.own_tensors())
    test = TensorDataset(*(torch.as_tensor(part) for part in data.digits("test")))
    trainer = prepare_trainer(
        Trainer(
            max_epochs=config["epochs"],
            accelerator="auto",
            devices="auto",
            strategy=build_strategy(config["deepspeed_config"]),
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
    batch_size = config["deepspeed_config"]["train_micro_batch_size_per_gpu"]
    order = DistributedSampler(own, num_replicas=1, rank=0)  # Lightning sets its epoch, after a resume too
    loaders = DataLoader(own, batch_size, sampler=order, drop_last=True), DataLoader(test, len(test))
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        trainer.fit(module, *loaders)
        return
    with checkpoint.as_directory() as folder:
        trainer.fit(module, *loaders, ckpt_path=str(Path(folder, RayTrainReportCallback.CHECKPOINT_NAME)))


def evaluate(checkpoint: Any) -> dict[str, float]:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from ray.train.lightning import RayTrainReportCallback

    module = build_module(0.0)
    with checkpoint.as_directory() as folder:
        parts = Path(folder, RayTrainReportCallback.CHECKPOINT_NAME)
        module.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(str(parts)))
    return {"accuracy": data.accuracy_of(module.eval().model)}
