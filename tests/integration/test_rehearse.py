"""A rehearsal names what a train function forgets to restore, and finds nothing where nothing is forgotten."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from example_flows import dreambooth_steps
from example_flows.frameworks import NAMES, example, installed
from plugin_core import LocalCluster, RunConfig, ScalingConfig, TrainSpec
from plugin_core.runs.rehearsal import FORGETS, RESUMES, UNCLEAR, Verdict
from plugin_core.specs import load_spec
from plugin_core.supervisor.rehearse import rehearse

LOOPS = "tests.support.forgetful"


def spec(loop: str, forgets: str = "", framework: str = "torch", workers: int = 2) -> TrainSpec:
    return TrainSpec(
        framework=framework,
        train_loop_per_worker=f"{LOOPS}:{loop}",
        train_loop_config={"forgets": forgets},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(name="rehearsed"),
    )


def rehearsed(cluster: LocalCluster, loop: str, forgets: str = "", **given: Any) -> Verdict:
    options = {name: given.pop(name) for name in ("reports", "kills", "seed") if name in given}
    return rehearse(spec(loop, forgets, **given), cluster, **{"reports": 5, "kills": 1, **options})


@pytest.mark.slow
@pytest.mark.parametrize(
    "forgotten", ["checkpoint", "epoch", "weights", "optimizer", "scheduler", "scaler", "sampler", "random numbers"]
)
def test_what_a_train_function_forgets_is_named(cluster: LocalCluster, forgotten: str) -> None:
    found = rehearsed(cluster, "learning", forgotten)
    assert (found.verdict, [finding.what for finding in found.findings]) == (FORGETS, [forgotten])
    assert "metrics.at" in found.left_out
    assert all(finding.says and finding.mend for finding in found.findings)


@pytest.mark.slow
def test_a_train_function_that_restores_all_resumes(cluster: LocalCluster) -> None:
    found = rehearsed(cluster, "learning", reports=7, kills=2)
    assert (found.verdict, found.findings) == (RESUMES, ())
    assert len(found.resumed) == 2
    assert {"weights", "optimizer", "lr", "scheduler", "scaler", "data", "metrics.loss"} <= set(found.compared)


@pytest.mark.slow
@pytest.mark.parametrize(("forgotten", "what"), [("", []), ("scaler", ["scaler"]), ("plateau", ["scheduler"])])
def test_a_resume_within_an_epoch_is_judged_by_the_batches_of_its_steps(
    cluster: LocalCluster, forgotten: str, what: list[str]
) -> None:
    found = rehearsed(cluster, "within_epochs", forgotten, workers=1, reports=6)
    assert (found.verdict, [finding.what for finding in found.findings]) == (FORGETS if what else RESUMES, what)


@pytest.mark.slow
def test_a_resumed_training_that_ends_early_counts_wrong(cluster: LocalCluster) -> None:
    found = rehearsed(cluster, "ending_early", framework="python", workers=1)
    assert (found.verdict, [finding.what for finding in found.findings]) == (FORGETS, ["epoch"])
    assert "ends after report" in found.findings[0].says


def dreambooth(folder: Path) -> TrainSpec:
    """The first training of `example_flows/dreambooth.py`."""
    pytest.importorskip("diffusers")
    return TrainSpec(
        train_loop_per_worker=dreambooth_steps.train_loop,
        train_loop_config={"epochs": 8, "lr": 0.002, "batch_size": 16},
        scaling_config=ScalingConfig(num_workers=2),
        datasets={"pictures": dreambooth_steps.make_pictures(str(folder))["class"]},
    )


def given(name: str, folder: Path) -> Any:
    if name == "digits":
        return load_spec(Path("example_flows/digits.yaml"))
    if name == "dreambooth":
        return dreambooth(folder)
    if name not in installed():
        pytest.skip(f"{name} is not installed")
    return example(name).SPEC


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "dreambooth", *NAMES])
def test_an_example_resumes(cluster: LocalCluster, tmp_path: Path, name: str) -> None:
    found = rehearse(given(name, tmp_path), cluster)
    assert (found.verdict, found.findings) == (RESUMES, ()), found


@pytest.mark.slow
@pytest.mark.parametrize(("loop", "why"), [
    ("unseeded", "two straight runs differ in "),
    ("keeping_nothing", "there is nothing to resume from: the train function reports none"),
])  # fmt: skip
def test_what_cannot_be_compared_is_no_finding(cluster: LocalCluster, loop: str, why: str) -> None:
    framework = "torch" if loop == "unseeded" else "python"
    found = rehearsed(cluster, loop, framework=framework, workers=1)
    assert (found.verdict, found.findings) == (UNCLEAR, ())
    assert found.why.startswith(why)


@pytest.mark.slow
def test_the_command_says_it_and_its_exit_code_too(cluster: LocalCluster, tmp_path: Path) -> None:
    for forgets, code in (("", 0), ("total", 22)):
        given = spec("counting", forgets, "python", 1).to_json()
        file = tmp_path / "spec.yaml"
        file.write_text(yaml.safe_dump({key: value for key, value in given.items() if value is not None}))
        command = [
            sys.executable,
            "-m",
            "plugin_core.cli",
            "rehearse",
            str(file),
            "--reports",
            "4",
            "--kills",
            "1",
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stderr
        verdict = json.loads(done.stdout)
        assert verdict["verdict"] == (RESUMES if code == 0 else FORGETS)
    (finding,) = verdict["findings"]
    assert "metrics.total" in finding["says"]
    assert finding["what"] == ""
