"""The helpers of train loops, in one process: they restore what was saved."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray.train
import torch

from plugin_core.loops import sharded, upload
from plugin_core.loops import torch as loop


class Run:
    """What Ray Train is to a loop: its name, its reports, its last checkpoint."""

    def __init__(self, folder: Path):
        self.name, self.folder, self.reports, self.modes = "run", folder, [], []
        self.checkpoint: Any = None
        self.workers = 1

    def report(self, metrics: dict[str, Any], checkpoint: Any = None, **options: Any) -> None:
        self.reports.append(metrics)
        self.modes.append(options)
        if checkpoint is not None:
            self.source = Path(checkpoint.path)
            copy = self.folder / f"checkpoint-{len(self.reports)}"
            shutil.copytree(self.source, copy)
            self.checkpoint = ray.train.Checkpoint.from_directory(copy)

    def get_experiment_name(self) -> str:
        return self.name

    def get_world_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return self.workers


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    run = Run(tmp_path)
    monkeypatch.setattr(ray.train, "report", run.report)
    monkeypatch.setattr(ray.train, "get_context", lambda: run)
    monkeypatch.setattr(ray.train, "get_checkpoint", lambda: run.checkpoint)
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield run
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def made(seed: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def step(model: Any, optimizer: Any, scheduler: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


@pytest.mark.parametrize("module", [loop, sharded])
def test_model_optimizer_scheduler_and_counters_come_back(run: Run, module: Any) -> None:
    parts = made(1)
    step(*parts)
    module.report({"epoch": 3, "step": 40, "loss": 0.5, "done": True}, *parts)
    again = made(2)
    assert module.restore(*again) == {"epoch": 3, "step": 40}
    for ours, theirs in zip(parts[0].parameters(), again[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert again[2].state_dict() == parts[2].state_dict()
    step(*parts)
    step(*again)
    for ours, theirs in zip(parts[0].parameters(), again[0].parameters(), strict=True):
        assert torch.equal(ours, theirs), "the optimizer's moments came back too"


@pytest.mark.parametrize("module", [loop, sharded])
def test_another_runs_checkpoint_gives_only_weights(run: Run, module: Any) -> None:
    parts = made(1)
    step(*parts)
    module.report({"epoch": 3}, *parts)
    run.name = "another"
    again = made(2)
    assert module.restore(*again) == {}
    assert torch.equal(again[0].weight, parts[0].weight)
    assert again[1].state_dict()["state"] == {}


@pytest.mark.parametrize("module", [loop, sharded])
def test_a_checkpoint_is_loaded_for_prediction(run: Run, module: Any) -> None:
    model, *_ = made(1)
    module.report({"epoch": 0}, model)
    loaded = module.load(run.checkpoint, made(2)[0])
    assert torch.equal(loaded.weight, model.weight)
    assert not loaded.training


def test_random_numbers_continue_where_they_were(run: Run) -> None:
    model, *_ = made(1)
    loop.report({"epoch": 0}, model)
    expected = draws()
    draws()
    loop.restore(model)
    assert draws() == expected


def test_without_a_checkpoint_nothing_is_restored(run: Run) -> None:
    assert loop.restore(*made(1)) == {}
    assert sharded.restore(*made(1)) == {}
    loop.report({"loss": 1.0}, made(1)[0], checkpoint=False)
    assert run.reports == [{"loss": 1.0}]
    assert run.checkpoint is None


def test_a_folder_is_removed_after_a_report_but_kept_during_an_upload(run: Run) -> None:
    upload.report({}, lambda folder: (folder / "a").touch())
    assert not run.source.exists()
    upload.report({}, lambda folder: (folder / "a").touch(), "async")
    assert run.source.exists()
    assert run.modes[-1]["delete_local_checkpoint_after_upload"] is True
    for file in run.source.iterdir():
        file.unlink()
    run.source.rmdir()


def test_a_wrong_upload_is_reported(run: Run) -> None:
    with pytest.raises(ValueError, match="upload: got 'later'; expected sync, async"):
        upload.report({}, lambda folder: None, "later")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_trainer_continues_in_the_same_epoch_with_another_number_of_workers(run: Run, tmp_path: Path) -> None:
    """Two workers take half the steps of one for an epoch: here one process with twice the batch, which says it is two."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from example_flows.frameworks import transformers as example
    from plugin_core.loops.transformers import train

    texts = example.examples("train")[:48]
    rows = [{key: value[:8] if key != "labels" else value for key, value in row.items()} for row in texts]

    class Stop(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    def training(batch: int, **fields: Any) -> Any:
        return Trainer(
            model=example.build_model(),
            train_dataset=rows,
            args=TrainingArguments(
                output_dir=str(tmp_path / "out"),
                per_device_train_batch_size=batch,
                num_train_epochs=4,
                learning_rate=0.1,
                save_strategy="epoch",
                logging_strategy="epoch",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
            **fields,
        )

    run.workers = 2
    train(training(16, callbacks=[Stop()]))
    run.workers = 1
    train(training(8))
    assert [report["epoch"] for report in run.reports] == [1, 2, 3, 4]
    rates = [report["learning_rate"] for report in run.reports]
    # the rate of an epoch's last step, of 3 and then of 6 to an epoch, falls by the line to 0 at the end
    assert rates == [pytest.approx(0.1 * (1 - done)) for done in (2 / 12, 11 / 24, 17 / 24, 23 / 24)]


def test_a_warm_start_takes_the_adapter_of_another_run(run: Run, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments

    from example_flows.frameworks import lora as example
    from plugin_core.loops.transformers import train

    class Look(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.begun_with = adapter(kwargs["model"])

    def adapter(model: Any) -> dict[str, Any]:
        return {name: part.detach().clone() for name, part in model.named_parameters() if "lora_B" in name}

    def training(look: Any) -> Any:
        return Trainer(
            model=get_peft_model(example.build_base(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"])),
            train_dataset=example.examples("train")[:16],
            data_collator=DataCollatorForLanguageModeling(example.build_tokenizer(), mlm=False),
            callbacks=[look],
            args=TrainingArguments(
                output_dir=str(tmp_path / "out"),
                num_train_epochs=1,
                learning_rate=0.1,
                save_strategy="epoch",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            ),
        )

    first, second = Look(), Look()
    trainer = training(first)
    train(trainer)
    trained = adapter(trainer.model)
    assert all(not part.any() for part in first.begun_with.values()), "an adapter that changes nothing"
    run.name = "another"
    warm = training(second)
    train(warm)
    assert trained.keys() == second.begun_with.keys() != set()
    assert all(part.any() and torch.equal(part, second.begun_with[name]) for name, part in trained.items())
    assert not any(torch.equal(part, trained[name]) for name, part in adapter(warm.model).items()), "and it is trained"
    assert warm.state.global_step == 2, "from the first step on"
