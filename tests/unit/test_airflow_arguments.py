"""What an operator refuses while the DAG file is parsed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow")

from airflow.providers.common.compat.sdk import DAG

from airflow_provider.decorators import ray_train_task
from airflow_provider.operators import PromoteModelOperator, RayEvaluateOperator, RayStepOperator, RayTrainOperator
from plugin_core.errors import SpecError
from tests.support.airflow_tasks import loop, train_operator


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: train_operator(scaling_config={"num_wrokers": 2}), "scaling_config.num_wrokers: unknown field"),
        (lambda: train_operator(datasets={"train": {"path": "x.csv", "colums": ["a"]}}), "datasets.train.colums: unknown"),
        (lambda: train_operator(framework="torhc"), "(did you mean torch?)"),
        (lambda: RayStepOperator(task_id="t", spec={"kind": "evaluat"}), "kind: got 'evaluat'; expected one of train"),
        (lambda: RayTrainOperator(task_id="t", spec="step.yaml"), "train_loop_confg: unknown field"),
    ],
)
def test_a_typo_in_a_spec_without_templates_is_an_error_of_the_dags_import(
    make: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step.yaml").write_text("train_loop_per_worker: a:b\ntrain_loop_confg: {}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        make()
    assert words in caught.value.message


def test_what_only_a_run_of_the_dag_brings_is_checked_there() -> None:
    with DAG("d"):
        train = train_operator(scaling_config={"num_workers": "{{ params.workers }}"})
        RayEvaluateOperator(task_id="evaluate", checkpoint=train.output, evaluate=loop, thresholds={"a": {"minn": 1}})
        RayTrainOperator(task_id="file", spec="where/the/task/runs.yaml")
        RayTrainOperator.partial(task_id="mapped", train_loop_per_worker=loop).expand(scaling_config=[{"num_wrokers": 2}])


def test_a_specs_check_at_parse_time_loads_nothing_heavy() -> None:
    code = """
import sys
from airflow_provider.operators import RayEvaluateOperator, RayRetrainOperator, RayTrainOperator, RayTuneOperator

before = set(sys.modules)

def loop(config): ...

train = {"train_loop_per_worker": loop, "datasets": {"train": "s3://bucket/x.parquet"}, "tracking": {"type": "mlflow"}}
train["runtime_env"] = {"pip": ["x"]}
RayTrainOperator(task_id="a", resume_from="s3://bucket/run", **train)
space = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
RayTuneOperator(task_id="b", train=train, param_space=space, metric="m", mode="min", scheduler="asha")
gate = {"predictor": "a:b", "task": "classification", "dataset": "gs://b/x.parquet", "must_beat": ["f1"]}
RayRetrainOperator(task_id="c", model="m", train=train, evaluate=gate, registry="mlflow")
RayEvaluateOperator(task_id="d", checkpoint="s3://b/c", evaluate="a:b", dataset="x.csv")
heavy = {"ray", "torch", "pandas", "mlflow", "pyarrow", "boto3", "fsspec", "aiohttp"}
print(*sorted(heavy & (set(sys.modules) - before)))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: train_operator(scaling_confg={"num_workers": 2}),
            "scaling_confg: got an argument that RayTrainOperator does not take; expected another name (did",
        ),
        (lambda: train_operator(scaling_confg={"num_workers": 2}), "(did you mean scaling_config?)"),
        (lambda: train_operator(retrys=3), "expected another name (did you mean retries?)"),
        (lambda: train_operator(xyzzy=3), "expected framework, train_loop_per_worker, "),
        (lambda: train_operator(xyzzy=3), ", or one that every operator takes"),
        (lambda: train_operator(ray_con_id="x"), "(did you mean ray_conn_id?)"),
        (lambda: PromoteModelOperator(task_id="p", result="/x", name="m", forced=True), "(did you mean force?)"),
        (
            lambda: ray_train_task(scaling_confg={})(loop)({}),
            "scaling_confg: got an argument that @task.ray_train does not take; expected",
        ),
    ],
)
def test_a_misspelt_argument_is_named_with_the_closest_one(make: Any, words: str) -> None:
    with DAG("d"), pytest.raises(SpecError) as caught:
        make()
    assert words in caught.value.message


def test_a_subclass_takes_its_own_arguments_and_all_of_airflows() -> None:
    class Mine(RayTrainOperator):
        def __init__(self, *, team: str, **kwargs: Any):
            super().__init__(**kwargs)
            self.team = team

    mine = Mine(task_id="t", team="a", train_loop_per_worker=loop, retries=2, pool="p", queue="q", params={"a": 1})
    assert (mine.team, mine.retries) == ("a", 2)


@pytest.mark.parametrize("wrong", [{"scaling_confg": {}}, {"scaling_config": {"num_wrokers": 2}}])
@pytest.mark.parametrize("make", [train_operator, lambda **wrong: ray_train_task(task_id="train", **wrong)(loop)({})])
def test_an_error_while_the_dag_is_parsed_names_its_task_and_the_line_of_the_dag(make: Any, wrong: Any) -> None:
    with DAG("d"), pytest.raises(SpecError) as caught:
        make(**wrong)
    (note,) = caught.value.__notes__
    file = make.__code__.co_filename
    assert re.fullmatch(rf"in the task 'train', in {re.escape(file)}, line \d+", note)
