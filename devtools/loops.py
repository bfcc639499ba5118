"""Train loops for the chaos tests: each step is recorded as it begins, so lost and repeated ones can be counted."""

import itertools
import os
import time
from pathlib import Path
from typing import Any

import ray.train

from devtools.notes import note
from devtools.steps import restore, save


def stepping(config: dict[str, Any]) -> None:
    """Adds up the numbers of its steps, with a checkpoint every `every` steps, of `bytes` bytes and under the fixed
    directory name `name` if these are given; with `report_all`, the steps in between are reported too, and so are
    repeated after a kill. At step `die_at`, rank `die_rank` fails as `die_how` says."""
    state = restore() or {"step": -1, "total": 0}
    rank = ray.train.get_context().get_world_rank()
    first, total = state["step"] + 1, state["total"]
    for step in range(first, config["steps"]):
        note(config["trail"], rank=rank, step=step, first=first)
        if rank == config.get("die_rank", 0) and step == config.get("die_at"):
            _die(config)
        total += step
        time.sleep(config.get("step_s", 0.1))
        if (step + 1) % config["every"] == 0 or step + 1 == config["steps"]:
            checkpoint = _big(save({"step": step, "total": total}), config.get("bytes", 0))
            ray.train.report({"step": step, "total": total}, checkpoint, checkpoint_dir_name=config.get("name"))
        elif config.get("report_all"):
            ray.train.report({"step": step, "total": total})
    note(config["trail"] + ".ended", rank=rank, step=config["steps"])


def _big(checkpoint: Any, size: int) -> Any:
    if checkpoint is not None and size:
        with checkpoint.as_directory() as folder:
            Path(folder, "weights.bin").write_bytes(os.urandom(size))
    return checkpoint


def _die(config: dict[str, Any]) -> None:
    if config["die_how"] == "exit":
        os._exit(1)
    raise ValueError("the data is bad")


def noticing(config: dict[str, Any]) -> None:
    """`stepping` with no checkpoints except the one that a preemption notice asks for, and the last; if `until` is
    given, the last step is the first one from `steps` on that finds this file."""
    from plugin_core import PreemptionNotice

    state = restore() or {"step": -1, "total": 0}
    rank = ray.train.get_context().get_world_rank()
    first, total, notice = state["step"] + 1, state["total"], PreemptionNotice()
    for step in itertools.count(first) if "until" in config else range(first, config["steps"]):
        world = ray.train.get_context().get_world_size()
        note(config["trail"], rank=rank, step=step, first=first, world=world)
        total += step
        time.sleep(config.get("step_s", 0.1))
        came = notice.came()
        last = step + 1 >= config["steps"] and ("until" not in config or Path(config["until"]).exists())
        if came or last or config.get("always"):
            note(config["trail"] + ".saved", rank=rank, step=step, came=came)
            ray.train.report({"step": step, "total": total}, save({"step": step, "total": total}))
        if last:
            return


def reading(config: dict[str, Any]) -> None:
    """Counts the rows that this worker gets, and waits for the file `until`, if one is given."""
    rank = ray.train.get_context().get_world_rank()
    note(config["trail"], rank=rank, step=0, began=True)
    rows = sum(len(batch["x"]) for batch in ray.train.get_dataset_shard("train").iter_batches(batch_size=8))
    while config.get("until") and not Path(config["until"]).exists():
        time.sleep(0.1)
    note(config["trail"], rank=rank, step=1, began=False)
    ray.train.report({"rows": rows})


def using_rows(config: dict[str, Any]) -> None:
    """Records which rows each step uses, over `epochs` epochs of the data of `source`, with a checkpoint every `every`
    steps, also within epochs. `alone`: a file without which a single worker takes no more than 20 steps."""
    from plugin_core.loops import rows

    ids, options = config["rows"], {"batch_size": config["batch_size"]}
    match config["source"]:
        case "parquet":
            batches = rows.read_parquet(config["data"], **options)
        case "dataset":
            batches = rows.from_dataset_shard(**options)
        case "torch":
            batches = rows.from_torch(range(ids), num_workers=1, multiprocessing_context="fork", **options)
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    first = step = (restore() or {"step": -1})["step"] + 1
    for epoch in range(batches.epoch, config["epochs"]):
        for batch in batches:
            used = batch.tolist() if config["source"] == "torch" else batch["id"].tolist()
            note(config["trail"], rank=rank, step=step, first=first, world=world, epoch=epoch, rows=used)
            time.sleep(config["step_s"])
            if step % config["every"] == config["every"] - 1:
                _report(step, batches)
            step += 1
            while world == 1 and step - first >= 20 and not Path(config.get("alone", ".")).exists():
                time.sleep(0.05)
    _report(step - 1, batches)


def _report(step: int, batches: Any) -> None:
    batches.check_ranks()
    checkpoint = save({"step": step})
    if checkpoint is not None:
        batches.save(checkpoint.path)
    ray.train.report({"step": step, "epoch": batches.epoch, "used": batches.used}, checkpoint)
