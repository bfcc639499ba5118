"""Specs: what is accepted, what is refused and with which message, and that names are Ray's."""

import dataclasses
import inspect
import json
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from plugin_core import CheckpointRef, EvaluateSpec, RunConfig, ScalingConfig, TrainSpec, load_spec, parse_spec
from plugin_core.errors import SpecError

LOOP = "devtools.steps:counting_loop"

BAD = {
    "unknown field": ({"frobnicate": 1}, "frobnicate: unknown field, got 1; expected"),
    "misspelt field": ({"scaling_config": {"num_worker": 2}}, "did you mean num_workers?"),
    "wrong type": (
        {"run_config": {"failure_config": {"max_failures": "z"}}},
        "run_config.failure_config.max_failures: got 'z'; expected a valid integer",
    ),
    "unknown framework": (
        {"framework": "tourch"},
        "framework: got 'tourch'; expected torch, lightning, transformers",
    ),
    "close framework": ({"framework": "tourch"}, "did you mean torch?"),
    "zero workers": ({"scaling_config": {"num_workers": 0}}, "scaling_config.num_workers: got 0; expected a whole"),
    "negative workers": ({"scaling_config": {"num_workers": -2}}, "scaling_config.num_workers: got -2; expected"),
    "bad pair": ({"scaling_config": {"num_workers": [3, 2]}}, "scaling_config.num_workers: got (3, 2); expected"),
    "function name": ({"train_loop_per_worker": "loop"}, "train_loop_per_worker: got 'loop'; expected a callable or"),
    "no function": ({"train_loop_per_worker": None}, "train_loop_per_worker: missing; framework 'torch' needs it"),
    "unknown scheme": (
        {"run_config": {"storage_path": "ftp://host/x"}},
        "run_config.storage_path: got 'ftp://host/x'; expected a local path or a URI with scheme file, s3",
    ),
    "credentials in a URI": (
        {"run_config": {"storage_path": "s3://key:secret@bucket/x"}},
        "run_config.storage_path: got 's3://…@bucket/x' with credentials; expected a URI without them",
    ),
    "name with a slash": ({"run_config": {"name": "a/b"}}, "run_config.name: got 'a/b'; expected 1 to 128 letters"),
    "the registry's folder": (
        {"run_config": {"name": "_models"}},
        "run_config.name: got '_models', the folder of the model",
    ),
    "empty name": ({"run_config": {"name": ""}}, "run_config.name: got ''; expected 1 to 128 letters"),
    "option of another framework": (
        {"label_column": "y"},
        "label_column: got it with framework 'torch'; only valid with",
    ),
    "no label column": (
        {"framework": "xgboost", "params": {}, "train_loop_per_worker": None},
        "label_column: missing; training declared by params needs it",
    ),
    "dataset without format": ({"datasets": {"train": "x.foo"}}, "format: missing, and not implied by"),
    "negative resource": (
        {"scaling_config": {"resources_per_worker": {"CPU": -1}}},
        "scaling_config.resources_per_worker.CPU: got -1",
    ),
    "unknown kind": (
        {"kind": "trane"},
        "kind: got 'trane'; expected one of train, tune, evaluate, batch_infer, retrain, ray_job",
    ),
    "negative time": ({"limits": {"timeout_s": -1}}, "limits.timeout_s: got -1; expected a value greater"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence_that_names_field_value_and_what_is_accepted(case: str) -> None:
    data, words = BAD[case]
    with pytest.raises(SpecError) as caught:
        parse_spec({"train_loop_per_worker": LOOP, **data})
    assert words in str(caught.value.args[0])
    assert "\n" not in str(caught.value.args[0])


def test_several_wrong_fields_are_all_named() -> None:
    with pytest.raises(SpecError) as caught:
        TrainSpec(train_loop_per_worker=LOOP, foo=1, run_config={"bar": 2})  # type: ignore[call-arg]
    assert [sentence.split(":")[0] for sentence in caught.value.sentences] == ["run_config.bar", "foo"]


def test_a_spec_survives_json_and_yaml(tmp_path: Path) -> None:
    spec = TrainSpec(
        train_loop_per_worker=LOOP,
        scaling_config=ScalingConfig(num_workers=(1, 2)),
        run_config=RunConfig(name="n", storage_path="s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http"),
        datasets={"train": "/data/x.parquet"},
        resume_from="/runs/other/checkpoint_1",
    )
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec.to_json()))
    (tmp_path / "spec.json").write_text(json.dumps(spec.to_json()))
    assert load_spec(tmp_path / "spec.yaml") == load_spec(tmp_path / "spec.json") == spec


@pytest.mark.parametrize(("name", "text"), [("a.yaml", "a: [1"), ("a.json", "{"), ("a.yaml", "- 1\n- 2"), ("b.yaml", "")])
def test_a_spec_file_that_is_neither_yaml_nor_json_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match="expected YAML or JSON"):
        load_spec(tmp_path / name)


def test_a_missing_spec_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"spec file: got .*none\.yaml.*cannot be read"):
        load_spec(tmp_path / "none.yaml")


def test_a_relative_path_means_the_folder_where_the_spec_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = TrainSpec(train_loop_per_worker=LOOP, datasets={"train": "x.csv"}, run_config=RunConfig(storage_path="runs"))
    assert spec.datasets["train"].path == str(tmp_path / "x.csv")
    assert spec.run_config.storage_path == str(tmp_path / "runs")


def test_a_train_result_is_accepted_as_its_checkpoint() -> None:
    result = {"kind": "train", "checkpoint": {"uri": "/runs/a/checkpoint_1"}, "run": {}}
    spec = EvaluateSpec(evaluate="devtools.steps:evaluate", checkpoint=result)
    assert spec.checkpoint == CheckpointRef(uri="/runs/a/checkpoint_1")


def test_a_train_result_without_a_checkpoint_is_refused_as_a_checkpoint() -> None:
    with pytest.raises(SpecError, match="the train result given has no checkpoint"):
        EvaluateSpec(evaluate="devtools.steps:evaluate", checkpoint={"kind": "train", "checkpoint": None})


@pytest.mark.parametrize("name", ["ScalingConfig", "RunConfig", "CheckpointConfig", "FailureConfig"])
def test_field_names_and_defaults_are_rays(name: str) -> None:
    """Every field of ours is one of Ray's, with Ray's default; `DEPARTURES` lists the exceptions."""
    import ray.train

    from plugin_core import specs

    theirs = {field.name: field for field in dataclasses.fields(getattr(ray.train, name))}
    for field, info in getattr(specs, name).model_fields.items():
        if f"{name}.{field}" in specs.DEPARTURES or field.endswith("_config"):
            continue
        assert (info.default or None) == (theirs[field].default or None), field


def test_what_ray_takes_and_a_spec_does_not_is_in_the_page_of_differences() -> None:
    import ray.train
    import ray.tune
    from ray.train.torch import TorchTrainer

    from plugin_core import specs

    def missing(theirs: type, ours: type[BaseModel]) -> set[str]:
        fields = {field.name for field in dataclasses.fields(theirs) if field.default != "DEPRECATED"}
        return fields - ours.model_fields.keys()

    found = set(inspect.signature(TorchTrainer).parameters) - specs.TrainSpec.model_fields.keys()
    found |= missing(ray.tune.TuneConfig, specs.TuneSpec)
    for name in ("ScalingConfig", "RunConfig", "CheckpointConfig", "FailureConfig"):
        found |= missing(getattr(ray.train, name), getattr(specs, name))
    assert {"storage_filesystem", "dataset_config", "reuse_actors"} <= found
    page = (Path(__file__).parents[2] / "docs" / "differs-from-ray.md").read_text()
    assert {name for name in found if f"`{name}" not in page} == set()
    assert {name for name in specs.DEPARTURES if name not in page} == set()


def test_torch_config_names_and_defaults_are_rays() -> None:
    from ray.train.torch import TorchConfig as Theirs

    from plugin_core import TorchConfig, specs

    theirs = {field.name: field.default for field in dataclasses.fields(Theirs)}
    for field, info in TorchConfig.model_fields.items():
        if f"TorchConfig.{field}" not in specs.DEPARTURES:
            assert info.default == theirs[field]
