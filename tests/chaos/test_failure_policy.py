"""Planted failures of each cause, on real workers: the cause is named, and what follows is what the policy says."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Running, Trail, drivers, kill, nothing_left, spec_at, wait_until
from devtools.notes import note
from devtools.ray_heads import OwnHead
from plugin_core import LocalCluster
from plugin_core.errors import GaveUpError, UserCodeError
from plugin_core.runs.journal import JournalReader

pytestmark = pytest.mark.slow
STEPS = 10


def failing(config: dict[str, Any]) -> None:
    """Rank 1 fails at step 5 in the way of `how`, for as long as its config makes it; with `node`, on the node that the
    file `bad` names, which it waits for."""
    import time

    import ray
    import ray.train
    import torch

    from devtools.steps import restore, save

    context = ray.train.get_context()
    rank, node = context.get_world_rank(), ray.get_runtime_context().get_node_id()
    for step in range((restore() or {"step": -1})["step"] + 1, STEPS):
        note(config["trail"], rank=rank, step=step, node=node, batch_size=config["batch_size"], lr=config["lr"])
        time.sleep(0.1)
        while config["how"] == "node" and step == 4 and not Path(config["bad"]).exists():
            time.sleep(0.1)
        loss = 1 / (step + 1)
        if step == 5 and rank == 1:
            match config["how"]:
                case "gpu_oom" if config["batch_size"] > 16:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
                case "ecc" if not Path(config["once"]).exists():
                    Path(config["once"]).touch()
                    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
                case "node" if node == Path(config["bad"]).read_text():
                    os.kill(os.getpid(), signal.SIGKILL)
                case "raises":
                    raise ValueError("the data is bad")
                case "memory" if not Path(config["once"]).exists():
                    Path(config["once"]).touch()
                    held = []
                    while True:
                        held.append(bytearray(os.urandom(2**20)) * 32)
        if step == 5 and config["how"] == "nan" and config["lr"] > 0.05:
            loss = float("nan")
        ray.train.report({"step": step, "loss": loss, "batch_size": config["batch_size"]}, save({"step": step}))


def training(folder: Path, trail: Trail, how: str, **policy: Any) -> Any:
    config = {"how": how, "batch_size": 64, "lr": 0.1, "once": str(folder / "once"), "bad": str(folder / "bad")}
    return spec_at(folder, trail.file, train_loop_per_worker=failing, loop=config, failure_policy=policy)


def test_a_batch_that_does_not_fit_is_halved_until_it_does(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    spec = training(tmp_path, trail, "gpu_oom", gpu_oom={"change": {"batch_size": {"times": 0.5}}})
    spec = spec.model_copy(update={"limits": {**spec.limits.model_dump(), "max_attempts": 1}})
    running = Running(spec, cluster)
    result = running.result()
    assert (result.metrics["step"], result.metrics["batch_size"], result.run.attempt) == (STEPS - 1, 16, 3)
    assert [entry["changed"] for entry in running.failures()] == [{"batch_size": 32}, {"batch_size": 16}]
    assert {entry["cause"] for entry in running.failures()} == {"gpu_oom"}
    sizes = [(entry["step"], entry["batch_size"]) for entry in trail.entries(rank=1) if entry["step"] == 5]
    assert sizes == [(5, 64), (5, 32), (5, 16)]
    trail.check(STEPS, kills=2)
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def test_a_loss_that_is_nan_goes_back_a_checkpoint_and_learns_slower(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    running = Running(training(tmp_path, trail, "nan", nan_loss={"back": 2, "change": {"lr": {"times": 0.5}}}), cluster)
    result = running.result()
    (failure,) = running.failures()
    assert failure["changed"] == {"lr": 0.05}
    assert len(failure["dropped"]) == 2
    assert failure["why"].startswith("the reported loss is nan; failure_policy.nan_loss: restarts with lr=0.05")
    again = [entry["step"] for entry in trail.entries() if entry["lr"] == 0.05]
    assert again == list(range(3, STEPS)), "the checkpoints of steps 3 and 4 are dropped, that of step 2 is resumed"
    assert result.metrics["step"] == STEPS - 1
    names = [entry["checkpoint"] for entry in JournalReader(running.rundir) if entry.get("checkpoint")]
    assert set(failure["dropped"]) <= set(names)


def test_a_node_that_fails_twice_is_done_without(tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]) -> None:
    """It is the only node at first, so the workers come back to it; another one joins later."""
    head = own_head(num_cpus=2)
    (bad,) = head.node_ids()
    spec = training(tmp_path, trail, "node", worker_lost={"exclude_node_after": 2, "at_most": 10})
    spec = spec.model_copy(update={"scaling_config": {"num_workers": 2, "placement_strategy": "STRICT_PACK"}})
    running = Running(spec, head.cluster())
    trail.wait_for(4)
    (tmp_path / "bad").write_text(bad)
    trail.wait_for_process(2, rank=1)  # rank 0 may be ended before it begins a step
    head.add_node(num_cpus=2)
    result = running.result()
    assert result.metrics["step"] == STEPS - 1
    found = [entry.get("excluded") for entry in running.failures()]
    assert (found, result.run.attempt) == ([None, bad], 2)
    assert trail.entries()[-1]["node"] == head.node_ids()[1]
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def test_broken_hardware_is_a_loss_and_no_exception_of_the_users(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    running = Running(training(tmp_path, trail, "ecc"), cluster)
    assert running.result().run.attempt == 1
    (failure,) = running.failures()
    assert failure["cause"] == "bad_node"
    assert failure["node"]
    assert "rank 1" in failure["why"]


def test_give_up_is_not_retried_by_any_budget(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    trail.hold(4)
    running = Running(training(tmp_path, trail, "fine", worker_lost={"action": "give_up"}), cluster)
    trail.wait_for(4)
    kill(trail.entries(rank=1)[-1]["pid"])
    error = running.error()
    assert isinstance(error, GaveUpError)
    assert not error.retryable
    assert error.cause == "worker_lost"
    assert running.rundir.latest() == 1
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def test_a_lost_driver_follows_the_same_table(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    trail.hold(4)
    running = Running(training(tmp_path, trail, "fine", infrastructure={"action": "give_up"}), cluster)
    trail.wait_for(4)
    for driver in drivers(running.rundir.uri):
        driver.kill()
    error = running.error()
    assert isinstance(error, GaveUpError)
    assert error.cause == "infrastructure"
    assert running.rundir.latest() == 1
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def test_an_exception_is_restarted_as_often_as_its_rule_says(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    running = Running(training(tmp_path, trail, "raises", user_code={"at_most": 2}), cluster)
    error = running.error()
    assert isinstance(error, UserCodeError)
    assert error.cause == "user_code"
    assert sum(entry["step"] == 5 for entry in trail.entries(rank=1)) == 3
    assert [entry["phase"] for entry in running.failures()] == ["restarting", "restarting", "failed"]


# ---- the kernel

MEMORY = 3 * 2**30


@pytest.fixture
def narrow() -> Iterator[Callable[[OwnHead], None]]:
    """Puts all processes of a head into a control group with little memory, which their children inherit."""
    parents = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    parent = next((each for each in parents if os.access(each / "cgroup.procs", os.W_OK)), None)
    if parent is None:
        pytest.skip("no control group can be made: this user may not write to /sys/fs/cgroup")
    group = parent / f"raytrain-{os.getpid()}"
    limit = "memory.limit_in_bytes" if parent.name == "memory" else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(MEMORY))
    except OSError as exc:
        pytest.skip(f"no control group can be made: {exc}")

    def put(head: OwnHead) -> None:
        for process in head.processes():
            (group / "cgroup.procs").write_text(str(process.pid))

    yield put
    wait_until(lambda: not (group / "cgroup.procs").read_text().split())
    group.rmdir()


@pytest.mark.parametrize("by_kernel", [True, False], ids=["out of memory", "SIGKILL"])
def test_the_kernels_kill_is_told_from_a_plain_one(
    tmp_path: Path,
    trail: Trail,
    narrow: Callable[[OwnHead], None],
    own_head: Callable[..., OwnHead],
    by_kernel: bool,
) -> None:
    """Both are a SIGKILL, and Ray says the same of both."""
    head = own_head(num_cpus=2, preload=False)
    narrow(head)
    trail.hold(4)
    running = Running(training(tmp_path, trail, "memory" if by_kernel else "fine"), head.cluster())
    trail.wait_for(4)
    if not by_kernel:
        kill(trail.entries(rank=1)[-1]["pid"])
    trail.release()
    result = running.result()
    assert (result.metrics["step"], result.run.attempt) == (STEPS - 1, 1)
    (failure,) = running.failures()
    expected = "was killed by the kernel, as memory ran out" if by_kernel else "the kernel killed nothing for memory"
    assert failure["cause"] == ("host_oom" if by_kernel else "worker_lost")
    assert expected in failure["why"]
