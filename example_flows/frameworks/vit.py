"""Hugging Face Transformers on images: a tiny vision transformer with random weights learns the digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from example_flows.frameworks import data
from example_flows.frameworks.transformers import accuracy, training_arguments
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="transformers",
    train_loop_per_worker="example_flows.frameworks.vit:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_model() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=10,
        )
    )


def examples(part: str) -> list[dict[str, Any]]:
    images, labels = data.digits(part)
    return [
        {"pixel_values": image, "labels": label} for image, label in zip(images.reshape(-1, 1, 8, 8), labels, strict=True)
    ]


def train_loop(config: dict[str, Any]) -> None:
    import torch
    from transformers import Trainer

    from plugin_core.loops.transformers import train

    torch.set_num_threads(1)
    train(
        Trainer(
            model=build_model(),
            args=training_arguments(config),
            train_dataset=examples("train"),
            eval_dataset=examples("test"),
            compute_metrics=accuracy,
        )
    )


def evaluate(checkpoint: Any) -> dict[str, float]:
    from plugin_core.loops.transformers import CHECKPOINT_NAME

    with checkpoint.as_directory() as folder:
        model = type(build_model()).from_pretrained(Path(folder, CHECKPOINT_NAME)).eval()
    return {"eval_accuracy": data.accuracy_of(lambda images: model(images.reshape(-1, 1, 8, 8)).logits)}
