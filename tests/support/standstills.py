"""Trainings that hang, each in a different way, and trainings that only seem to."""

from pathlib import Path
from typing import Any

from devtools.chaos import spec_at
from devtools.notes import note

STEPS, AT = 12, 6


def asleep() -> None:
    import time

    time.sleep(3600)


def turning() -> None:
    while True:
        pass


def holding_the_gil() -> None:
    import ctypes

    ctypes.PyDLL(None).sleep(3600)


def behind_a_dead_loader() -> None:
    import queue

    queue.Queue().get()


def behind_a_real_loader() -> None:
    """The loading process is alive, but never delivers its batch."""
    import time

    from torch.utils.data import DataLoader, Dataset

    class Stuck(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            time.sleep(3600)
            return index

    for _ in DataLoader(Stuck(), num_workers=1):
        pass


STANDSTILLS = {
    function.__name__: function
    for function in (asleep, turning, holding_the_gil, behind_a_dead_loader, behind_a_real_loader)
}


def standing_still(config: dict[str, Any]) -> None:
    """Rank 1 hangs at step `AT`, once; rank 0 waits for it in a collective."""
    import time

    import ray.train
    import ray.train.collective

    from devtools.steps import restore, save

    context = ray.train.get_context()
    rank, once = context.get_world_rank(), Path(config["once"])
    for step in range((restore() or {"step": -1})["step"] + 1, STEPS):
        note(config["trail"], rank=rank, step=step)
        if rank == 1 and step == AT and not once.exists():
            once.touch()
            STANDSTILLS.get(config["how"], lambda: None)()
            while config["how"] == "waiting" and not Path(f"{once}.go").exists():
                time.sleep(0.1)
        ray.train.collective.barrier()
        time.sleep(0.2)
        ray.train.report({"step": step}, save({"step": step}) if step % 2 else None)


def training(folder: Path, trail: Path, how: str, **detection: Any) -> Any:
    loop = {"how": how, "once": str(folder / "once")}
    given = {"action": "restart", "start_s": 30.0, "min_s": 5.0, "factor": 2.0, **detection}
    return spec_at(folder, trail, train_loop_per_worker=standing_still, loop=loop, hang_detection=given)
