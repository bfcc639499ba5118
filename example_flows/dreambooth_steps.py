"""A diffusion model learns one subject from a few pictures, as in DreamBooth, step by step and small enough for a CPU.

DreamBooth (Ruiz et al., 2022) trains a text-to-image model on a few pictures of one subject under a prompt with a rare word
("a photo of sks disc"), and at the same time on pictures of the class ("a photo of disc") that the model itself made
before, so that it does not forget the class (prior preservation). Here the pictures are generated, 16 × 16 pixels, and
the model is `diffusers`' UNet with random weights; word vectors stand in for the text encoder.
"""

from __future__ import annotations

from typing import Any

from example_flows.tables import write_tables

SIZE = 16
CLASS, SUBJECT = "a photo of disc", "a photo of sks disc"
WORDS = ("a", "photo", "of", "disc", "sks")
NOISE_STEPS = 100


def make_pictures(folder: str) -> dict[str, str]:
    """Write `class.parquet` (256 discs of any colour), `subject.parquet` (6 pictures of the same magenta ring) and
    `wanted.parquet` (64 prompts of the class, each with a seed) under `folder`; returns where they are."""
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(7)
    discs = [picture(random, random.uniform(-0.5, 1, 3), hole=0) for _ in range(256)]
    rings = [picture(random, np.array([1.0, -0.5, 1.0]), hole=2) for _ in range(6)]
    tables = {
        "class": pa.table({"image": [*discs], "prompt": [CLASS] * len(discs)}),
        "subject": pa.table({"image": [*rings], "prompt": [SUBJECT] * len(rings)}),
        "wanted": pa.table({"prompt": [CLASS] * 64, "seed": range(64)}),
    }
    return write_tables(folder, tables)


def picture(random: Any, colour: Any, hole: float) -> Any:
    """A disc of radius 5 somewhere near the middle, as 3 × 16 × 16 float32 from −1 to 1, flat."""
    import numpy as np

    row, column = random.uniform(6, 10, 2)
    y, x = np.mgrid[:SIZE, :SIZE]
    distance = np.hypot(y - row, x - column)
    inside = (distance <= 5) & (distance >= hole)
    image = np.where(inside[None], colour[:, None, None], -1.0)
    return image.astype(np.float32).reshape(-1)


def build_model() -> Any:
    """A denoiser conditioned on a noise step and on words: `unet` and `words`."""
    from diffusers import UNet2DConditionModel
    from torch import nn

    unet = UNet2DConditionModel(
        sample_size=SIZE,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unet, self.words = unet, nn.Embedding(len(WORDS) + 1, 16, padding_idx=0)

        def forward(self, images: Any, steps: Any, words: Any) -> Any:
            return self.unet(images, steps, encoder_hidden_states=self.words(words)).sample

    return Denoiser()


def words_of(prompts: Any) -> Any:
    """The prompts as word numbers, padded with 0."""
    import torch

    longest = len(SUBJECT.split())
    numbers = [[WORDS.index(word) + 1 for word in str(prompt).split()] for prompt in prompts]
    return torch.tensor([row + [0] * (longest - len(row)) for row in numbers])


def scheduler() -> Any:
    from diffusers import DDPMScheduler

    return DDPMScheduler(num_train_timesteps=NOISE_STEPS)


def denoising_loss(model: Any, batch: dict[str, Any], generator: Any) -> Any:
    """Mean squared error of the noise that the model predicts in pictures with a random amount of noise."""
    import numpy as np
    import torch

    device = next(model.parameters()).device
    images = torch.as_tensor(np.stack(batch["image"])).reshape(-1, 3, SIZE, SIZE)
    noise = torch.randn(images.shape, generator=generator)
    steps = torch.randint(0, NOISE_STEPS, (len(images),), generator=generator)
    noisy = scheduler().add_noise(images, noise, steps)
    found = model(noisy.to(device), steps.to(device), words_of(batch["prompt"]).to(device))
    return torch.nn.functional.mse_loss(found, noise.to(device))


def train_loop(config: dict[str, Any]) -> None:
    """`config`: `epochs`, `lr`, `batch_size`; with the dataset `prior`, each batch of `pictures` comes with a batch of
    it, whose loss is weighted by `prior_weight`."""
    import itertools

    import ray.train
    import torch
    from ray.train.torch import prepare_model

    from plugin_core.loops.torch import report, restore

    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = prepare_model(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    first_epoch = restore(model, optimizer).get("epoch", -1) + 1
    pictures = ray.train.get_dataset_shard("pictures").materialize()
    prior_weight = config.get("prior_weight", 0.0)
    prior = ray.train.get_dataset_shard("prior").materialize() if prior_weight else None

    for epoch in range(first_epoch, config["epochs"]):
        generator = torch.Generator().manual_seed(1000 * epoch + ray.train.get_context().get_world_rank())
        batches = pictures.iter_batches(
            batch_size=config["batch_size"], local_shuffle_buffer_size=256, local_shuffle_seed=epoch
        )
        others = itertools.repeat(None)
        if prior is not None:
            others = itertools.cycle(list(prior.iter_batches(batch_size=config["batch_size"])))
        losses = []
        for batch, other in zip(batches, others, strict=False):
            loss = denoising_loss(model, batch, generator)
            if other is not None:
                loss = loss + prior_weight * denoising_loss(model, other, generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        report({"epoch": epoch, "loss": sum(losses) / len(losses)}, model, optimizer)


def load_model(checkpoint: Any) -> Any:
    import torch

    from plugin_core.loops.torch import load

    torch.set_num_threads(1)
    return load(checkpoint, build_model())


class Painter:
    """Adds the column `image` to prompts with seeds: what the model makes from pure noise in `steps` steps."""

    def __init__(self, checkpoint: Any, steps: int = 20):
        self._model, self._steps = load_model(checkpoint), steps

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import torch

        seeds = [torch.Generator().manual_seed(int(seed)) for seed in batch["seed"]]
        images = torch.stack([torch.randn((3, SIZE, SIZE), generator=seed) for seed in seeds])
        words, noise = words_of(batch["prompt"]), scheduler()
        noise.set_timesteps(self._steps)
        with torch.inference_mode():
            for step in noise.timesteps:
                found = self._model(images, step.expand(len(images)), words)
                images = noise.step(found, step, images, generator=seeds[0]).prev_sample
        return {**batch, "image": images.clamp(-1, 1).reshape(len(images), -1).numpy()}


def evaluate(checkpoint: Any, dataset: Any) -> dict[str, float]:
    """`subject_loss`: the denoising loss on pictures of the subject, over the same 20 draws of noise each time."""
    import torch

    model = load_model(checkpoint)
    pictures = next(iter(dataset.iter_batches(batch_size=None)))
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        losses = [denoising_loss(model, pictures, generator).item() for _ in range(20)]
    return {"subject_loss": sum(losses) / len(losses)}
