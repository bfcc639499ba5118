"""Transformers with DeepSpeed ZeRO-3: the reviews' Trainer, with model and optimizer in parts, one per worker."""

from __future__ import annotations

from typing import Any

from example_flows.frameworks import deepspeed
from example_flows.frameworks import transformers as reviews
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="transformers",
    train_loop_per_worker="example_flows.frameworks.transformers_deepspeed:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 16},
    deepspeed_config={
        **deepspeed.SPEC.deepspeed_config,
        "train_micro_batch_size_per_gpu": "auto",
        # besides the parts, the whole model for from_pretrained
        "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    },
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def train_loop(config: dict[str, Any]) -> None:
    import torch
    from transformers import DataCollatorWithPadding, Trainer

    from plugin_core.loops.transformers import train

    torch.set_num_threads(1)
    deepspeed.build_no_operators()
    train(
        Trainer(
            model=reviews.build_model(),
            args=reviews.training_arguments(config, deepspeed=config["deepspeed_config"]),
            train_dataset=reviews.examples("train"),
            eval_dataset=reviews.examples("test"),
            data_collator=DataCollatorWithPadding(reviews.build_tokenizer()),
            compute_metrics=reviews.accuracy,
        )
    )


evaluate = reviews.evaluate
