"""Each extra alone: an environment with what it requires, and nothing else, imports and runs its part.

`test_installs` does it with pip for those that a newcomer installs first. Here the packages are linked, so nothing is
downloaded; what a requirement leaves out is missing all the same.
"""

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from devtools.servers import s3_endpoint
from tests.support.environments import make_environment
from tests.support.fake_kubernetes import FakeKubernetes

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

#: Extra → the example that it trains, and the extras that the example needs for itself.
EXAMPLES = {
    "torch": ("torch", "examples,torchmetrics"),
    "lightning": ("lightning", "examples"),
    "transformers": ("transformers", "examples"),
    "accelerate": ("accelerate", "examples"),
    "deepspeed": ("deepspeed", "examples"),
    "tensorflow-cpu": ("tensorflow", "examples"),
    "xgboost-cpu": ("xgboost", "examples"),
    "lightgbm": ("lightgbm", "examples"),
    "jax": ("jax", "examples"),
    "peft": ("lora", "examples"),
}
#: Extra → a tracker of it, and a file that it writes.
TRACKERS = {
    "mlflow": ("MLflow(tracking_uri='sqlite:///mlflow.db')", "mlflow.db"),
    "wandb": ("WandB(mode='offline')", "runs/t/tracking/wandb/**/*.wandb"),
    "tensorboard": ("TensorBoard()", "runs/t/tracking/tensorboard/**/events*"),
    "comet": ("Comet(mode='offline')", "runs/t/tracking/comet/**/*.zip"),
}
STORAGES = {"s3": "s3", "s3fs": "s3", "gcs": "gcs", "azure": "azure"}
#: Extra → what does the rest; it may use `TrainSpec` and the like, `trained()` and `ROWS`.
OTHERS = {
    "evaluate": """
print("DONE", execute(EvaluateSpec(predictor="users:Same", task="classification", checkpoint="checkpoint", dataset=ROWS,
                                   run_config=RunConfig(name="e", storage_path=STORAGE))).metrics["accuracy"])
""",
    "torchmetrics": """
print("DONE", execute(EvaluateSpec(predictor="users:Same", torchmetrics="users:torch_metric", checkpoint="checkpoint",
                                   dataset=ROWS, run_config=RunConfig(name="e", storage_path=STORAGE))).metrics)
""",
    "history": """
from plugin_core import history, plot
trained()
plot(STORAGE + "/t").savefig("plot.png")
print("DONE", history(STORAGE + "/t")["loss"].tolist())
""",
    "optuna": """
print("DONE", execute(TuneSpec(train=TrainSpec(framework="python", train_loop_per_worker="users:loop"), metric="loss",
                               mode="min", num_samples=2, search_alg="optuna",
                               param_space={"train_loop_config": {"lr": {"uniform": [0.1, 0.2]}}},
                               run_config=RunConfig(name="o", storage_path=STORAGE))).metrics)
""",
    "avro": """
import fastavro
schema = {"type": "record", "name": "row", "fields": [{"name": "x", "type": "int"}]}
with open("rows.avro", "wb") as file:
    fastavro.writer(file, schema, [{"x": 1}, {"x": 2}])
print("DONE", trained(train_loop_per_worker="users:rows", datasets={"train": DatasetConfig(path="rows.avro")}).metrics)
""",
    "kuberay": """
from plugin_core import KubeRayCluster, KubeRaySettings
cluster = KubeRayCluster("a", settings=KubeRaySettings(image="i"), kubeconfig=os.environ["FAKE_KUBECONFIG"])
print("DONE", asyncio.run(cluster.describe()))
""",
    "torchft": """
import torchft.manager
spec = TrainSpec(framework="torch", train_loop_per_worker="users:loop", torch_config={"fault_tolerance": "torchft"})
print("DONE", spec.torch_config)
""",
    "diffusers": """
from diffusers import DDPMScheduler, UNet2DConditionModel
import torch
net = UNet2DConditionModel(sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8), norm_num_groups=4,
                           cross_attention_dim=8, down_block_types=("DownBlock2D", "DownBlock2D"),
                           up_block_types=("UpBlock2D", "UpBlock2D"))
print("DONE", net(torch.ones(1, 1, 8, 8), 1, torch.ones(1, 1, 8)).sample.shape)
""",
    "examples": 'from example_flows.frameworks import data\nimport sklearn.datasets\nprint("DONE", data.__name__)',
}
#: Extra → where else it runs, or why it does not run here.
ELSEWHERE = {
    "prefect": "test_installs, test_apart",
    "airflow": "test_installs, test_apart",
    "tensorflow": "the same as tensorflow-cpu, with gigabytes of CUDA",
    "xgboost": "the same as xgboost-cpu, with gigabytes of CUDA",
    "horovod": "is built: `make horovod`, then test_frameworks",
    "all": "the environment of all tests",
    "dev": "the environment of all tests",
}
PRELUDE = """
import asyncio, os
from plugin_core import *
STORAGE, ROWS = os.getcwd() + "/runs", DatasetConfig(path="rows.parquet")

def trained(**fields):
    given = {"framework": "python", "train_loop_per_worker": "users:loop", **fields}
    return execute(TrainSpec(**given, run_config=RunConfig(name="t", storage_path=STORAGE)))
"""
USERS = """
def loop(config):
    import ray.train
    for step in range(2):
        ray.train.report({"loss": config.get("lr", 1.0) / (step + 1)})

def rows(config):
    import ray.train
    read = sum(len(batch["x"]) for batch in ray.train.get_dataset_shard("train").iter_batches())
    ray.train.report({"read": read})

class Same:
    def __init__(self, checkpoint): ...
    def __call__(self, batch):
        return {"prediction": batch["label"]}

def torch_metric():
    from torchmetrics.classification import BinaryAccuracy
    return BinaryAccuracy()
"""


def run(extras: str, script: str, folder: Path, without: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> str:
    """What the script prints in an environment with these extras."""
    import pyarrow as pa
    import pyarrow.parquet

    python = make_environment(folder / "environment", f"ray-train-workflows[{extras}]", *more, without=without)
    (folder / "work" / "checkpoint").mkdir(parents=True)
    (folder / "work" / "checkpoint" / "state.json").touch()
    pyarrow.parquet.write_table(pa.table({"label": [0, 1, 1, 0]}), folder / "work" / "rows.parquet")
    (folder / "work" / "users.py").write_text(USERS)
    paths = [str(folder / "work"), *([str(ROOT)] if "examples" in extras else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "RAYTRAIN_HOME": str(folder / "home")}
    done = subprocess.run(
        [python, "-c", PRELUDE + script], cwd=folder / "work", env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert "DONE" in done.stdout
    return done.stdout


def test_each_extra_is_here_or_elsewhere() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) == {*EXAMPLES, *TRACKERS, *STORAGES, *OTHERS, *ELSEWHERE}


@pytest.mark.parametrize("extra", EXAMPLES)
def test_an_extra_of_a_framework_trains(extra: str, tmp_path: Path) -> None:
    name, others = EXAMPLES[extra]
    script = f"""
from example_flows.frameworks import example
spec = example({name!r}).SPEC
change = {{"run_config": RunConfig(name="t", storage_path=STORAGE)}}
if spec.num_boost_round:
    change["num_boost_round"] = 2
else:
    change["train_loop_config"] = {{**spec.train_loop_config, "epochs": 1}}
print("DONE", execute(spec.model_copy(update=change)).metrics)
"""
    # tf-keras asks for tensorflow, which tensorflow-cpu is under another name
    if extra == "tensorflow-cpu":
        run(f"{extra},{others}", script, tmp_path, without=("tensorflow",), more=("tf-keras",))
    else:
        run(f"{extra},{others}", script, tmp_path)


@pytest.mark.parametrize("extra", TRACKERS)
def test_an_extra_of_a_tracker_tracks(extra: str, tmp_path: Path) -> None:
    tracker, file = TRACKERS[extra]
    run(extra, f'trained(tracking=[{tracker}])\nprint("DONE")', tmp_path)
    assert list((tmp_path / "work").glob(file)), [str(each) for each in (tmp_path / "work").rglob("*")][:50]


@pytest.mark.parametrize("extra", STORAGES)
def test_an_extra_of_a_storage_keeps_runs(extra: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    uri: str = request.getfixturevalue(STORAGES[extra])
    if extra == "s3fs":
        uri = f"s3fs://runs/prefix?endpoint_url={s3_endpoint(uri)}"
    run(extra, f"STORAGE = {uri!r}\nprint('DONE', trained().metrics)", tmp_path)


@pytest.mark.parametrize("extra", OTHERS)
def test_any_other_extra_does_its_part(extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeKubernetes(tmp_path) as kubernetes:
        monkeypatch.setenv("FAKE_KUBECONFIG", str(kubernetes.kubeconfig))
        run(extra, OTHERS[extra], tmp_path)
