"""What an engine's log leaves out of a job's log."""

import re

import pytest

from plugin_core.errors.plain_text import plain
from plugin_core.supervisor import noise
from tests.support.recorded_logs import recorded


def kept(name: str) -> list[str]:
    """The same whether Ray Train's controller is an actor, as in the recorded logs, or runs in the driver."""
    log = plain(recorded(name))
    in_driver = noise.Filter().kept(re.sub(r"\(TrainController pid=\d+\) ?", "", log).split("\n"))
    as_an_actor = noise.Filter().kept(log.split("\n"))
    assert in_driver == as_an_actor
    return in_driver


def test_of_a_real_log_only_what_the_job_itself_says_is_kept() -> None:
    assert kept("healthy") == []
    assert {re.sub(r"\d+", "N", line) for line in kept("killed_worker")} == {
        "(raylet) the process N was killed (SIGKILL, or out of memory) or crashed"
    }


def test_a_reader_of_ray_data_that_stops_early_is_no_error() -> None:
    lines = [
        "(ListFiles pid=3) Exception in thread pool-1/completion-signaler:",
        "(ListFiles pid=3) Traceback (most recent call last):",
        '(ListFiles pid=3)   File "/v/ray/data/_internal/dynamic_work_queue.py", line 180, in _signal',
        "(ListFiles pid=3)     raise InterruptedError",
        "(ListFiles pid=3) InterruptedError",
        "(ListFiles pid=3) a line of its own",
    ]
    assert noise.Filter().kept(lines) == lines[-1:]


@pytest.mark.parametrize("line", [
    "2026-11-24 22:39:48,888 INFO raytrain.driver: waiting for 3 CPUs; 1 run ahead: a (has 3 CPUs)",
    "(TrainController pid=1) [2026-11-23 12:25:30,652 E 1 7] core_worker.cc:2465: Actor with class name: 'P",
    "(pid=gcs_server) [2026-11-23 12:28:15,916 E 9 9] (gcs_server) gcs_actor_scheduler.cc:538: Failed to kill actor 57",
    "(DatasetManager pid=3) /v/options.py:436: RayDeprecationWarning: `ExecutionOptions.exclude_resources` is deprecated",
    "(DatasetManager pid=3) Using blocking ray.get inside async actor. This blocks the event loop. Please use `await`",
    "(ListFiles pid=3) ray.exceptions.RayTaskError(InterruptedError): ListFiles() InterruptedError",
    "*** SIGTERM received at time=1795437249 on cpu 1 ***",
    "    @     0x7f30d3929890         64  (unknown)",
    "[2026-11-23 12:28:15,916 E 9 9] logging.cc:501:     @     0x7f30d3929890 (unknown)",
])  # fmt: skip
def test_known_noise_is_left_out(line: str) -> None:
    assert noise.Filter().kept([line]) == []


@pytest.mark.parametrize("line", [
    "(RayTrainWorker pid=3) epoch 1 of 5",
    "(RayTrainWorker pid=3) WARNING: the loss is NaN",
    "2026-11-23 12:33:42,886 WARNING plugin_core.driver.train.step: checkpoint_manager_snapshot.json is missing",
    "(TrainController pid=1) journal: /runs/a/.step/journal cannot be written",
    "[2026-11-23 12:28:15,916 E 9 9] (raylet) node_manager.cc:3: 1 Workers killed due to memory pressure",
    "ValueError: the data is bad",
])  # fmt: skip
def test_the_jobs_own_lines_warnings_and_errors_are_kept(line: str) -> None:
    assert noise.Filter().kept([line]) == [line]


def test_a_users_traceback_is_left_to_the_error() -> None:
    assert kept("user_error") == []
