"""A causal language model fine-tuned with LoRA (`peft`): its own weights stay frozen, and a checkpoint has only the
adapter. The model is a tiny Llama with random weights, so nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from example_flows.frameworks import data
from example_flows.frameworks.transformers import build_tokenizer, training_arguments
from plugin_core import ScalingConfig, TrainSpec

PACKAGES = ("peft",)
SPEC = TrainSpec(
    framework="transformers",
    train_loop_per_worker="example_flows.frameworks.lora:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.02, "batch_size": 16},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_base() -> Any:
    """The model to fine-tune, the same every time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(data.SEED)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(build_tokenizer()),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                initializer_range=0.2,
                pad_token_id=0,
            )
        )


def examples(part: str) -> list[dict[str, Any]]:
    texts, _ = data.reviews(part)
    return [{"input_ids": ids} for ids in build_tokenizer()(texts)["input_ids"]]


def train_loop(config: dict[str, Any]) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import DataCollatorForLanguageModeling, Trainer

    from plugin_core.loops.transformers import train

    torch.set_num_threads(1)
    adapter = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
    train(
        Trainer(
            model=get_peft_model(build_base(), adapter),
            args=training_arguments(config),
            train_dataset=examples("train"),
            eval_dataset=examples("test"),
            data_collator=DataCollatorForLanguageModeling(build_tokenizer(), mlm=False),
        )
    )


def evaluate(checkpoint: Any) -> dict[str, float]:
    import torch
    from peft import PeftModel

    from plugin_core.loops.transformers import CHECKPOINT_NAME

    with checkpoint.as_directory() as folder:
        model = PeftModel.from_pretrained(build_base(), Path(folder, CHECKPOINT_NAME)).eval()
    ids = torch.tensor([example["input_ids"] for example in examples("test")])
    with torch.inference_mode():
        return {"eval_loss": float(model(input_ids=ids, labels=ids).loss)}
