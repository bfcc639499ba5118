"""Hugging Face Transformers: a tiny BERT with random weights tells kind reviews from others; the tokenizer is made here, so
nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="transformers",
    train_loop_per_worker="example_flows.frameworks.transformers:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 16},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_tokenizer() -> Any:
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *data.GOOD, *data.BAD, *data.OTHER]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def build_model() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=2 + len(data.GOOD + data.BAD + data.OTHER),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=16,
        )
    )


def examples(part: str) -> list[dict[str, Any]]:
    texts, labels = data.reviews(part)
    encoded = build_tokenizer()(texts, return_token_type_ids=False)
    return [
        {"input_ids": ids, "attention_mask": mask, "labels": label}
        for ids, mask, label in zip(encoded["input_ids"], encoded["attention_mask"], labels, strict=True)
    ]


def training_arguments(config: dict[str, Any], **more: Any) -> Any:
    import ray.train
    import torch
    from transformers import TrainingArguments

    return TrainingArguments(
        # one folder for all workers of a node
        output_dir=str(Path(tempfile.gettempdir(), ray.train.get_context().get_experiment_name())),
        num_train_epochs=config["epochs"],
        learning_rate=config["lr"],
        per_device_train_batch_size=config["batch_size"],
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        # on a machine without GPUs this must be set, or each worker trains alone
        use_cpu=not torch.cuda.is_available(),
        **more,
    )


def train_loop(config: dict[str, Any]) -> None:
    import torch
    from transformers import DataCollatorWithPadding, Trainer

    from plugin_core.loops.transformers import train

    torch.set_num_threads(1)
    train(
        Trainer(
            model=build_model(),
            args=training_arguments(config),
            train_dataset=examples("train"),
            eval_dataset=examples("test"),
            data_collator=DataCollatorWithPadding(build_tokenizer()),
            compute_metrics=accuracy,
        )
    )


def accuracy(predictions: Any) -> dict[str, float]:
    return {"accuracy": float((predictions.predictions.argmax(axis=1) == predictions.label_ids).mean())}


def evaluate(checkpoint: Any) -> dict[str, float]:
    import torch

    from plugin_core.loops.transformers import CHECKPOINT_NAME

    with checkpoint.as_directory() as folder:
        model = type(build_model()).from_pretrained(Path(folder, CHECKPOINT_NAME)).eval()
    texts, labels = data.reviews("test")
    encoded = build_tokenizer()(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        known = model(**encoded).logits.argmax(dim=1) == torch.tensor(labels)
    return {"eval_accuracy": float(known.float().mean())}
