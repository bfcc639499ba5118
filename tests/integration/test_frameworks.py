"""Every framework on two workers of a real Ray: it trains, is one world, and goes on after deaths."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from example_flows.frameworks import NAMES, example, installed
from plugin_core import RunConfig, ScalingConfig, TrainSpec, execute, run
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.frameworks.world import WorldError
from plugin_core.journal import read_reports
from plugin_core.results import TrainResult
from plugin_core.rundir import RunDir
from tests import framework_loops
from tests.chaos.tools import Running, wait_until
from tests.heads import OwnHead

#: The examples whose training is declared: round by round, the datasets in the spec.
TREES = ("xgboost", "lightgbm")


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """A Ray that this process is connected to, for `execute`: a step starts without a job of its own."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def need(name: str) -> None:
    if name not in installed():
        pytest.skip(f"{name} is not installed" + ("; `make horovod` builds it" if name == "horovod" else ""))


def spec_of(name: str, folder: Path, around: str, epochs: int) -> TrainSpec:
    """The example's spec, with a loop of `tests.framework_loops` around its own."""
    spec = example(name).SPEC
    config = {**spec.train_loop_config, "epochs": epochs}
    loop, fields = spec.train_loop_per_worker, {}
    if name in TREES:
        # what the declaration makes of itself, so that a test's loop can be around it
        loop = f"plugin_core.frameworks.{name}:declared_loop"
        config = {"params": {"seed": spec.seed, **spec.params}, "label_column": spec.label_column}
        config |= {"num_boost_round": epochs, "early_stopping_rounds": None, "checkpoint_frequency": 1}
        config |= {"datasets": ["train"]}
        fields = {"params": None, "label_column": None, "num_boost_round": None, "early_stopping_rounds": None}
        fields |= {"checkpoint_frequency": None, "datasets": {"train": spec.datasets["train"]}}
    if spec.deepspeed_config is not None:
        config["deepspeed_config"] = spec.deepspeed_config
        fields["deepspeed_config"] = None
    (folder / "marks").mkdir(exist_ok=True)
    given = {"loop": loop, "config": config, "framework": spec.framework, "marks": str(folder / "marks")}
    return spec.model_copy(
        update={
            **fields,
            "train_loop_per_worker": f"tests.framework_loops:{around}",
            "train_loop_config": given,
            "run_config": RunConfig(name=name, storage_path=str(folder)),
        }
    )


def losses(result: TrainResult) -> list[float]:
    reports = [report["metrics"] for report in read_reports(RunDir.at(result.run.uri))]
    name = next(key for key in ("loss", "train-logloss", "train-binary_logloss") if key in reports[0])
    return [report[name] for report in reports]


def check_world(folder: Path) -> None:
    """The sum of ranks 0 and 1, by the framework's own collective, on each."""
    assert {path.name: path.read_text() for path in (folder / "marks").glob("world-*")} == {"world-0": "1", "world-1": "1"}


def check_predictions(name: str, result: TrainResult) -> None:
    """The checkpoint's model, loaded in this one process, scores on the test data what the training reported."""
    if name in TREES:
        return
    assert result.checkpoint is not None
    scores = example(name).evaluate(result.checkpoint.to_ray())
    assert scores == {key: pytest.approx(result.metrics[key], abs=1e-3) for key in scores}


#: A smoke of each framework is in `make test`; the others are second examples of one, or shown by another test there.
SMOKE = [name for name in NAMES if name not in ("torch", "fsdp", "vit", "xgboost", "lightgbm")]


@pytest.mark.parametrize("name", SMOKE)
def test_trains_as_one_world(name: str, tmp_path: Path, here: None) -> None:
    need(name)
    result = execute(spec_of(name, tmp_path, "joined", epochs=2))
    check_world(tmp_path)
    assert len(losses(result)) == 2
    assert losses(result)[1] < losses(result)[0]
    check_predictions(name, result)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnHead, OwnHead]]:
    """Two Rays, one after the other for each run."""
    heads = [OwnHead(tmp_path_factory.mktemp("h")) for _ in range(2)]
    yield heads[0], heads[1]
    for head in heads:
        head.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_goes_on_after_a_killed_worker_and_in_another_session(
    name: str, tmp_path: Path, sessions: tuple[OwnHead, OwnHead]
) -> None:
    """Rank 1 is killed after two epochs; the next worker group does one and fails; another Ray does the other three. So it
    shows all that `test_trains_as_one_world` does."""
    need(name)
    spec = spec_of(name, tmp_path, "mortal", epochs=6)
    with pytest.raises(UserCodeError, match="the end of the first session"):
        run(spec, sessions[0].cluster())
    assert {path.name for path in (tmp_path / "marks").iterdir()} == {
        *("killed", "failed", "second-group-0", "second-group-1")
    }
    result = run(spec, sessions[1].cluster())
    assert result.run.attempt == 2
    reports = read_reports(RunDir.at(result.run.uri))
    assert [report["attempt"] for report in reports] == [1, 1, 1, 2, 2, 2]
    assert [report["index"] for report in reports] == [1, 2, 3, 4, 5, 6], "no epoch is trained twice"
    assert losses(result)[-1] < losses(result)[0]
    check_world(tmp_path)
    check_predictions(name, result)


@pytest.mark.parametrize(
    ("framework", "loop", "why"),
    [
        (
            "torch",
            "alone_torch",
            r"no collective operation was called .* joins them: model = ray.train.torch.prepare_model",
        ),
        pytest.param("lightning", "alone_lightning", "no collective operation .*RayDDPStrategy", marks=pytest.mark.slow),
        pytest.param(
            *("transformers", "alone_transformers", r"num_processes=1; what joins them: TrainingArguments\(use_cpu=True\)"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("accelerate", "alone_accelerate", r"num_processes=1; what joins them: Accelerator\(cpu=True\)"),
            marks=pytest.mark.slow,
        ),
        pytest.param("accelerate", "alone_fsdp", "ignores its FSDP plugin on this device", marks=pytest.mark.slow),
        pytest.param("deepspeed", "alone_deepspeed", "no collective .*deepspeed.initialize", marks=pytest.mark.slow),
        pytest.param("tensorflow", "alone_tensorflow", "no MultiWorkerMirroredStrategy was made", marks=pytest.mark.slow),
        pytest.param("lightgbm", "alone_lightgbm", "LightGBM was given no network parameters", marks=pytest.mark.slow),
        pytest.param("horovod", "alone_horovod", "Horovod is not initialised", marks=pytest.mark.slow),
    ],
)
def test_workers_that_train_alone_fail_with_what_to_change(
    framework: str, loop: str, why: str, tmp_path: Path, here: None
) -> None:
    need(framework)
    spec = TrainSpec(
        framework=framework,
        train_loop_per_worker=f"tests.framework_loops:{loop}",
        train_loop_config={"folder": str(tmp_path / "out")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="alone", storage_path=str(tmp_path)),
    )
    with pytest.raises(WorldError, match=why):
        execute(spec)


@pytest.mark.parametrize("name", [pytest.param("xgboost", marks=pytest.mark.slow), "lightgbm"])
def test_declared_trees_stop_early_with_the_best_model(name: str, tmp_path: Path, here: None) -> None:
    spec = example(name).SPEC
    run_config = RunConfig(name=name, storage_path=str(tmp_path))
    result = execute(spec.model_copy(update={"run_config": run_config}))
    metric, score = next(iter(example(name).evaluate(result.checkpoint.to_ray()).items()))
    reported = [report["metrics"][metric] for report in read_reports(RunDir.at(result.run.uri))]
    best = min(reported)
    assert len(reported) == reported.index(best) + 1 + spec.early_stopping_rounds
    assert result.metrics["best_iteration"] == reported.index(best)
    assert score == pytest.approx(best, rel=1e-4), "exact over all rows, though two workers trained"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_label_column_that_is_not_in_the_data_is_told_before_a_worker_starts(
    name: str, tmp_path: Path, here: None
) -> None:
    spec = example(name).SPEC
    update = {"label_column": "targt", "run_config": RunConfig(name="label", storage_path=str(tmp_path))}
    with pytest.raises(
        SpecError, match="label_column: given 'targt', which dataset 'train' has not; accepted is one of mean"
    ):
        execute(spec.model_copy(update=update))


def ranks(config: dict[str, Any]) -> None:
    import numpy as np
    import ray.train

    ray.train.report({"rank": ray.train.get_context().get_world_rank(), "drawn": np.random.rand()})


@pytest.mark.slow
def test_the_journal_keeps_every_ranks_report_when_told_to(tmp_path: Path, here: None) -> None:
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=ranks,
        report_all_ranks=True,
        seed=11,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="ranks", storage_path=str(tmp_path)),
    )
    result = execute(spec)
    (report,) = read_reports(RunDir.at(result.run.uri))
    assert [metrics["rank"] for metrics in report["ranks"]] == [0, 1]
    assert {metrics["drawn"] for metrics in report["ranks"]} == {np.random.RandomState(11).rand()}, "seeded alike"
    assert report["metrics"]["rank"] == 0


@pytest.mark.slow
def test_keras_does_regression_too(tmp_path: Path, here: None) -> None:
    tensorflow = example("tensorflow")
    run_config = RunConfig(name="regression", storage_path=str(tmp_path))
    result = execute(tensorflow.REGRESSION.model_copy(update={"run_config": run_config}))
    assert losses(result)[-1] < losses(result)[0]
    scores = tensorflow.evaluate(result.checkpoint.to_ray(), "diabetes")
    assert scores == {"val_loss": pytest.approx(result.metrics["val_loss"], abs=1e-3)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "deepspeed"])
def test_a_second_worker_joins(name: str, tmp_path: Path, own_head: Callable[..., OwnHead]) -> None:
    """One worker at first, two as soon as there is a second node; it goes on from the checkpoint of the one. (The parts
    that ZeRO writes are of so many workers.)"""
    need(name)
    head = own_head(num_cpus=1)
    running = Running(_elastic(name, tmp_path, epochs=25), head.cluster())
    wait_until(lambda: worlds(tmp_path) == ["1"])
    head.add_node(num_cpus=1)
    result = running.result()
    assert worlds(tmp_path) == ["1", "2"]
    check_epochs(result, 25, changes=1)
    check_predictions(name, result)


def _elastic(name: str, folder: Path, epochs: int) -> TrainSpec:
    workers = ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=2.0)
    return spec_of(name, folder, "paced", epochs).model_copy(update={"scaling_config": workers})


def worlds(folder: Path) -> list[str]:
    """The numbers of workers that reported, each once as long as it stays the same."""
    file = folder / "marks" / "worlds"
    return [size for size, _ in itertools.groupby(file.read_text().split())] if file.exists() else []


def check_epochs(result: TrainResult, epochs: int, changes: int) -> None:
    """Each epoch is there, and a change of workers costs at most one interval, here one epoch."""
    indices = [report["index"] for report in read_reports(RunDir.at(result.run.uri))]
    assert sorted(set(indices)) == list(range(1, epochs + 1))
    assert len(indices) <= epochs + changes


@pytest.mark.slow
def test_what_two_workers_wrote_in_parts_one_reads_and_two_again(tmp_path: Path, own_head: Callable[..., OwnHead]) -> None:
    """FSDP: two workers, one when a node is killed, two when another one comes; each goes on from the parts that those
    before it wrote."""
    head = own_head(num_cpus=1)
    node = head.add_node(num_cpus=1)
    running = Running(_elastic("fsdp", tmp_path, epochs=40), head.cluster())
    wait_until(lambda: worlds(tmp_path) == ["2"])
    for process in node:
        process.kill()
    wait_until(lambda: worlds(tmp_path) == ["2", "1"])
    head.add_node(num_cpus=1)
    result = running.result()
    assert worlds(tmp_path) == ["2", "1", "2"]
    check_epochs(result, 40, changes=2)
    check_predictions("fsdp", result)


def test_frameworks_of_the_tests_are_all_there_are() -> None:
    from plugin_core.frameworks import FRAMEWORKS

    assert {example(name).SPEC.framework for name in NAMES} == set(FRAMEWORKS) - {"python"}
    assert set(framework_loops.SUMS) == set(FRAMEWORKS) - {"python"}
