"""Every framework on two workers of a real Ray: it trains, is one world, and continues after kills."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

import example_flows
from devtools.chaos import Running, wait_until
from devtools.ray_heads import OwnHead
from devtools.servers import environment
from example_flows.frameworks import NAMES, example, installed
from plugin_core import LocalCluster, RunConfig, ScalingConfig, TrainSpec, execute, run
from plugin_core.driver.train.frameworks.world import WorldError
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from plugin_core.specs.results import TrainResult
from plugin_core.supervisor.cancel import cancel
from tests.support import framework_loops
from tests.support.framework_table import INELASTIC

#: The examples whose training is declared: round by round, the datasets in the spec.
TREES = ("xgboost", "lightgbm")
#: How the names of the examples begin that give one library to another to shard with.
COMBINED = ("lightning_", "transformers_", "accelerate_")


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """A Ray that this process is connected to, for `execute`: a step starts without a job of its own."""
    # as on the embedded head: no process that watches for preemptions
    with environment({"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}):
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        yield
        ray.shutdown()


def need(name: str) -> None:
    if name not in installed():
        pytest.skip(f"{name} is not installed" + ("; `make horovod` builds it" if name == "horovod" else ""))


def spec_of(name: str, folder: Path, around: str, epochs: int) -> TrainSpec:
    """The example's spec, with a loop of `tests.support.framework_loops` around its own."""
    spec = example(name).SPEC
    config = {**spec.train_loop_config, "epochs": epochs}
    loop, fields = spec.train_loop_per_worker, {}
    if name in TREES:
        # what the declaration makes of itself, so that a test's loop can be around it
        loop = f"plugin_core.driver.train.frameworks.{name}:declared_loop"
        config = {"params": {"seed": spec.seed, **spec.params}, "label_column": spec.label_column}
        config |= {"num_boost_round": epochs, "early_stopping_rounds": None, "checkpoint_frequency": 1}
        config |= {"datasets": ["train"], "callbacks": []}
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
            "train_loop_per_worker": f"tests.support.framework_loops:{around}",
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
SMOKE = [
    name
    for name in NAMES
    if name not in ("torch", "fsdp", "local_shuffle", "lora", "vit") and not name.startswith(COMBINED)
]


@pytest.mark.smoke
@pytest.mark.parametrize("name", SMOKE)
def test_trains_as_one_world(name: str, tmp_path: Path, cluster: LocalCluster) -> None:
    need(name)
    # the example's loop, by its name in the configuration, does not travel by itself
    brought = {"runtime_env": {"py_modules": [str(Path(example_flows.__file__).parent)]}}
    result = run(spec_of(name, tmp_path, "joined", epochs=2).model_copy(update=brought), cluster)
    check_world(tmp_path)
    assert len(losses(result)) == 2
    assert losses(result)[1] < losses(result)[0]


@pytest.fixture(scope="module")
def sessions() -> Iterator[tuple[OwnHead, OwnHead]]:
    """Two Rays, one after the other for each run: one with room for two workers, one with room for one."""
    heads = [OwnHead(num_cpus) for num_cpus in (2, 1)]
    yield heads[0], heads[1]
    for head in heads:
        head.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_continues_after_a_killed_worker_and_in_another_session_with_other_workers(
    name: str, tmp_path: Path, sessions: tuple[OwnHead, OwnHead]
) -> None:
    """Two workers, of which one is killed; two again, which fail; in another Ray one, which a second one joins. Each group
    does one epoch, the last one the rest; so it shows all that `test_trains_as_one_world` does."""
    need(name)
    elastic = name not in INELASTIC  # the parts that ZeRO writes are of so many workers
    workers = (1, 2) if elastic else 2
    spec = spec_of(name, tmp_path, "mortal", epochs=5).model_copy(
        update={"scaling_config": ScalingConfig(num_workers=workers, elastic_resize_monitor_interval_s=2.0)}
    )
    first, second = sessions
    with pytest.raises(UserCodeError, match="the end of the first session"):
        run(spec, first.cluster())
    running = Running(spec, second.cluster())
    node: list[psutil.Process] = []
    try:
        if elastic:
            wait_until(lambda: running.done() or (tmp_path / "marks" / "waiting").exists())
        node = second.add_node(num_cpus=1)
        result = running.result()
    finally:
        # the next framework needs all of this Ray
        cancel(running.rundir, second.cluster())
        if node:
            second.remove_node(node)
    groups = {path.name for path in (tmp_path / "marks").glob("group-*")}
    one = {"group-2-0-of-1"} if elastic else set()
    assert groups == one | {f"group-{group}-{rank}-of-2" for group in range(3) for rank in range(2)}
    assert result.run.attempt == 2
    reports = read_reports(RunDir.at(result.run.uri))
    assert [report["attempt"] for report in reports] == [1, 1, 2, 2, 2]
    assert [report["index"] for report in reports] == [1, 2, 3, 4, 5], "no epoch is trained twice"
    assert losses(result)[-1] < losses(result)[0]
    check_world(tmp_path)
    check_predictions(name, result)


@pytest.mark.parametrize(
    ("framework", "loop", "why"),
    [
        pytest.param(
            *("torch", "alone_torch", "no collective operation .* to join them: model = ray.train.torch.prepare_model"),
            marks=pytest.mark.slow,
        ),
        pytest.param("lightning", "alone_lightning", "no collective operation .*RayDDPStrategy", marks=pytest.mark.slow),
        pytest.param(
            *("transformers", "alone_transformers", r"num_processes=1; to join them: TrainingArguments\(use_cpu=True\)"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("accelerate", "alone_accelerate", r"num_processes=1; to join them: Accelerator\(cpu=True\)"),
            marks=pytest.mark.slow,
        ),
        pytest.param("accelerate", "alone_fsdp", "ignores its FSDP plugin on this device", marks=pytest.mark.slow),
        pytest.param("accelerate", "alone_zero", "ignores its DeepSpeed plugin .*PartialState", marks=pytest.mark.slow),
        pytest.param("deepspeed", "alone_deepspeed", "no collective .*deepspeed.initialize", marks=pytest.mark.slow),
        pytest.param("tensorflow", "alone_tensorflow", "MultiWorkerMirroredStrategy was created", marks=pytest.mark.slow),
        pytest.param("lightgbm", "alone_lightgbm", "LightGBM got no network parameters", marks=pytest.mark.slow),
        pytest.param("horovod", "alone_horovod", "Horovod is not initialised", marks=pytest.mark.slow),
    ],
)
def test_workers_that_train_alone_fail_with_what_to_change(
    framework: str, loop: str, why: str, tmp_path: Path, here: None
) -> None:
    need(framework)
    spec = TrainSpec(
        framework=framework,
        train_loop_per_worker=f"tests.support.framework_loops:{loop}",
        train_loop_config={"folder": str(tmp_path / "out")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="alone", storage_path=str(tmp_path)),
    )
    with pytest.raises(WorldError, match=why):
        execute(spec)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_declared_trees_stop_early_with_the_best_model(name: str, tmp_path: Path, here: None) -> None:
    spec = example(name).SPEC
    run_config = RunConfig(name=name, storage_path=str(tmp_path))
    result = execute(spec.model_copy(update={"run_config": run_config}))
    metric, score = next(iter(example(name).evaluate(result.checkpoint.to_ray()).items()))
    reported = [report["metrics"][metric] for report in read_reports(RunDir.at(result.run.uri))]
    best = min(reported)
    assert len(reported) == reported.index(best) + 1 + spec.early_stopping_rounds
    assert (result.metrics["best_iteration"], result.metrics["best_score"]) == (reported.index(best), best)
    assert score == pytest.approx(best, rel=1e-4), "exact over all rows, though two workers trained"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_a_missing_label_column_is_reported_before_a_worker_starts(name: str, tmp_path: Path, here: None) -> None:
    spec = example(name).SPEC
    update = {"label_column": "targt", "run_config": RunConfig(name="label", storage_path=str(tmp_path))}
    with pytest.raises(SpecError, match="label_column: got 'targt', not found in dataset 'train'; expected one of mean"):
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


def test_every_framework_has_an_example_and_a_sum() -> None:
    from plugin_core.specs.frameworks import FRAMEWORKS

    assert {example(name).SPEC.framework for name in NAMES} == set(FRAMEWORKS) - {"python"}
    assert set(framework_loops.SUMS) == set(FRAMEWORKS) - {"python"}
