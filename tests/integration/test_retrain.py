"""The whole loop as one step, on a real Ray head: trained, judged against the champion, promoted or not, one at a time."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from devtools.chaos import Running, drivers, kill, wait_until
from devtools.steps import save
from plugin_core import Evaluation, LocalCluster, RetrainSpec, RunConfig, TrainSpec, get_model, promote, rollback, run
from plugin_core.driver.retrain import part_name
from plugin_core.errors import LeaseHeldError, SpecError, UserCodeError
from plugin_core.runs.directory import RunDir


def loop(config: dict[str, Any]) -> None:
    """Learns the mean of x; records whether it began cold, warm from another run's checkpoint, or where this run was, which
    leaves nothing to do; waits for `go`."""
    import time

    import ray.train

    name, begins = ray.train.get_context().get_experiment_name(), "cold"
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            begins = "resumed" if json.loads(Path(folder, "state.json").read_text())["run"] == name else "warm"
    with open(config["starts"], "a") as file:
        file.write(f"{begins}\n")
    while config.get("go") and not Path(config["go"]).exists():
        time.sleep(0.1)
    mean = ray.train.get_dataset_shard("train").materialize().mean("x")
    if begins != "resumed" and config.get("keep", True):
        ray.train.report({"mean": mean}, checkpoint=save({"mean": mean, "run": name}))


def quality(checkpoint: Any, dataset: Any, config: dict[str, Any]) -> dict[str, Any]:
    """How near the checkpoint's mean is to what the test set says is true; waits for `go`."""
    import time

    while config.get("go") and not Path(config["go"]).exists():
        time.sleep(0.1)
    with checkpoint.as_directory() as folder:
        mean = json.loads(Path(folder, "state.json").read_text())["mean"]
    return {"error": abs(mean - dataset.mean("x"))}


@pytest.fixture
def data(tmp_path: Path) -> Any:
    """Writes the training data with the given mean; the test data's is 10."""

    def write(mean: float) -> None:
        table = pa.table({"x": [mean - 1, mean, mean + 1]})
        pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
        os.utime(tmp_path / "train.parquet", ns=(int(mean * 1e9),) * 2)

    pyarrow.parquet.write_table(pa.table({"x": [9.0, 11.0]}), tmp_path / "test.parquet")
    return write


def spec(tmp_path: Path, name: str, **fields: Any) -> RetrainSpec:
    train = {"starts": str(tmp_path / "starts"), **fields.pop("train_config", {})}
    defaults: dict[str, Any] = {
        "model": "mean",
        "train": TrainSpec(
            framework="python",
            train_loop_per_worker=loop,
            train_loop_config=train,
            datasets={"train": str(tmp_path / "train.parquet")},
        ),
        "evaluate": Evaluation(
            evaluate=quality,
            dataset=str(tmp_path / "test.parquet"),
            config=fields.pop("evaluate_config", {}),
            thresholds={"error": {"max": 8}},
            must_beat={"error": {"mode": "min"}},
        ),
        "run_config": RunConfig(name=name, storage_path=str(tmp_path / "runs")),
    }
    return RetrainSpec(**{**defaults, **fields})


def part(running: Running, name: str) -> RunDir:
    return running.rundir.child(part_name(running.rundir, name))


def champion(tmp_path: Path) -> Any:
    return get_model("mean", registry=str(tmp_path / "runs" / "_models"))


def starts(tmp_path: Path) -> list[str]:
    file = tmp_path / "starts"
    return file.read_text().split() if file.exists() else []


@pytest.mark.slow
def test_a_first_model_is_promoted(cluster: LocalCluster, tmp_path: Path, data: Any) -> None:
    data(15)
    first = run(spec(tmp_path, "monday"), cluster)
    assert (first.outcome, first.champion, first.metrics) == ("promoted", 1, {"error": 5.0})
    assert champion(tmp_path).checkpoint == first.checkpoint.uri
    assert champion(tmp_path).evaluation == first.evaluated


@pytest.mark.slow
def test_unchanged_data_is_not_retrained(cluster: LocalCluster, tmp_path: Path, data: Any) -> None:
    data(15)
    first = run(spec(tmp_path, "monday"), cluster)
    same = run(spec(tmp_path, "tuesday"), cluster)
    assert (same.outcome, same.champion, same.checkpoint) == ("skipped", 1, first.checkpoint)
    assert "skip_unchanged" in same.reason


@pytest.mark.slow
def test_the_champion_is_beaten_or_kept_depending_on_the_data(cluster: LocalCluster, tmp_path: Path, data: Any) -> None:
    data(15)
    first = run(spec(tmp_path, "monday"), cluster)
    data(12)
    better = run(spec(tmp_path, "wednesday"), cluster)
    assert (better.outcome, better.champion, better.metrics) == ("promoted", 2, {"error": 2.0})
    data(16)
    worse = run(spec(tmp_path, "thursday"), cluster)
    assert (worse.outcome, worse.champion, worse.checkpoint) == ("kept", 2, better.checkpoint)
    assert worse.reason == "error: 6 > the other's 2 (by 4 worse; tolerance 0)"
    data(30)
    assert "30" not in (bad := run(spec(tmp_path, "friday"), cluster)).reason
    assert "20 > max 8 (by 12)" in bad.reason
    assert starts(tmp_path) == ["cold", "warm", "warm", "warm"]
    assert rollback("mean", registry=str(tmp_path / "runs" / "_models")).checkpoint == first.checkpoint.uri


@pytest.mark.slow
def test_two_concurrent_retrainings_do_not_train_at_once(cluster: LocalCluster, tmp_path: Path, data: Any) -> None:
    """The one that waits for the model holds no CPUs: there are enough for two, yet the third and fourth learn at once."""
    data(12)
    go = {"train_config": {"go": str(tmp_path / "go")}}
    with ThreadPoolExecutor(3) as pool:
        both = [pool.submit(run, spec(tmp_path, name, **go), cluster) for name in ("one", "two")]
        try:
            wait_until(lambda: starts(tmp_path))
            with pytest.raises(LeaseHeldError, match="is being retrained by"):
                run(spec(tmp_path, "three", on_overlap="fail", **go), cluster)
            skipped = run(spec(tmp_path, "four", on_overlap="skip", **go), cluster)
            assert (skipped.outcome, skipped.champion) == ("skipped", 0)
            assert len(starts(tmp_path)) == 1
        finally:
            (tmp_path / "go").touch()
        outcomes = sorted(future.result(600).outcome for future in both)
    # the second of the two found that there was nothing new any more
    assert outcomes == ["promoted", "skipped"]
    assert len(starts(tmp_path)) == 1


@pytest.mark.slow
def test_a_retraining_killed_while_it_evaluates_does_not_train_again(
    cluster: LocalCluster, tmp_path: Path, data: Any
) -> None:
    data(12)
    given = spec(tmp_path, "killed", evaluate_config={"go": str(tmp_path / "go")})
    running = Running(given, cluster)
    wait_until(lambda: part(running, "train").result() is not None)
    wait_until(lambda: part(running, "evaluate-v0").exists())
    (driver,) = drivers(running.rundir.uri)
    kill(driver)
    (tmp_path / "go").touch()
    result = running.result()
    assert (result.outcome, result.run.attempt) == ("promoted", 2)
    assert len(starts(tmp_path)) == 1


@pytest.mark.slow
def test_a_champion_that_moved_meanwhile_is_the_one_to_beat(cluster: LocalCluster, tmp_path: Path, data: Any) -> None:
    data(15)
    first = run(spec(tmp_path, "first"), cluster)
    data(13)
    other = run(spec(tmp_path, "other", model="other"), cluster)
    data(14)
    given = spec(tmp_path, "late", evaluate_config={"go": str(tmp_path / "go")})
    running = Running(given, cluster)
    wait_until(lambda: part(running, "evaluate-v1").exists())
    promote(other.checkpoint, "mean", registry=str(tmp_path / "runs" / "_models"))
    (tmp_path / "go").touch()
    result = running.result()
    assert first.champion == 1
    assert (result.outcome, result.champion) == ("kept", 2)
    assert "the other's" in result.reason


@pytest.mark.slow
def test_a_training_without_a_checkpoint_is_reported_as_such(cluster: LocalCluster, tmp_path: Path, data: Any) -> None:
    data(12)
    with pytest.raises(UserCodeError, match="train: reported no checkpoint; a retraining needs one to evaluate"):
        run(spec(tmp_path, "nothing", train_config={"keep": False}), cluster)


def test_a_retraining_without_a_gate_is_refused(tmp_path: Path) -> None:
    gateless = Evaluation(evaluate=quality, dataset=str(tmp_path / "test.parquet"))
    with pytest.raises(SpecError, match=r"evaluate.must_beat: missing; a retraining needs thresholds or must_beat"):
        spec(tmp_path, "x", evaluate=gateless)
    with pytest.raises(SpecError, match="model: got 'a/b'; expected"):
        spec(tmp_path, "x", model="a/b")
