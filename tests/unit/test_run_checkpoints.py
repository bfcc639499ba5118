"""A run directory where a checkpoint is wanted: which of its checkpoints is taken, and what is refused before a submit."""

import json
from pathlib import Path
from typing import Any

import pytest

from plugin_core import CheckpointRef, EvaluateSpec, RunRef, TrainResult, TrainSpec, TuneSpec, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import StepSpec
from plugin_core.specs.results import EvaluationResult, TuneResult
from plugin_core.supervisor.preflight import check_functions_and_data
from plugin_core.supervisor.run_checkpoints import with_checkpoints
from tests.support.fake_steps import LOOP, spec_at

LOSSES = {"checkpoint_a": 0.3, "checkpoint_b": 0.1, "checkpoint_c": 0.2}
ASC = {"checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}


def source(tmp_path: Path, checkpoints: dict[str, float] = LOSSES, **config: Any) -> RunDir:
    """A training that has reported these checkpoints, and has no result yet."""
    at = {"name": "source", "storage_path": str(tmp_path), "checkpoint_config": config}
    spec = spec_at(tmp_path, run_config=at)
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    lines = []
    for number, (name, loss) in enumerate(checkpoints.items(), 1):
        rundir.location.child(name, "model.pt").write(b"m")
        lines.append({"attempt": 1, "time": 0.0, "report": number, "metrics": {"loss": loss}, "checkpoint": name})
    rundir.step.child("journal", "001-0000001.jsonl").write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
    return rundir


def reference(rundir: RunDir, name: str) -> CheckpointRef:
    return CheckpointRef(uri=rundir.location.child(name).uri)


def chosen(spec: StepSpec) -> tuple[str, list[str]]:
    found, remarks = with_checkpoints(spec, here=True)
    check_functions_and_data(found, here=True)
    return found.resume_from.uri.rpartition("/")[2], remarks  # type: ignore[attr-defined]


def test_a_run_without_a_score_gives_its_latest_checkpoint(tmp_path: Path) -> None:
    rundir = source(tmp_path)
    assert chosen(spec_at(tmp_path, resume_from=rundir.uri)) == (
        "checkpoint_c",
        [f"resume_from: {rundir.uri} is a run; taking its latest checkpoint, checkpoint_c"],
    )
    rundir.location.child("checkpoint_c").delete_dir()
    assert chosen(spec_at(tmp_path, resume_from=rundir.uri))[0] == "checkpoint_b"


def test_a_run_with_a_score_gives_its_best_checkpoint_that_is_left(tmp_path: Path) -> None:
    rundir = source(tmp_path, **ASC)
    name, remarks = chosen(spec_at(tmp_path, resume_from=rundir.uri))
    assert name == "checkpoint_b"
    assert "taking its best checkpoint" in remarks[0]
    rundir.location.child("checkpoint_b").delete_dir()
    assert chosen(spec_at(tmp_path, resume_from=rundir.uri))[0] == "checkpoint_c"


def test_a_finished_runs_result_says_which(tmp_path: Path) -> None:
    rundir = source(tmp_path)
    run_ref = RunRef(uri=rundir.uri, name=rundir.name)
    trained = TrainResult(run=run_ref, checkpoint=reference(rundir, "checkpoint_b"), reports=3)
    rundir.write_result(TuneResult(run=run_ref, best=trained, best_config={}, trials={}, table="t"))
    assert chosen(spec_at(tmp_path, resume_from=rundir.uri))[0] == "checkpoint_b"


def test_nested_trainings_and_evaluations_are_looked_at_too(tmp_path: Path) -> None:
    uri = source(tmp_path).uri
    train = TrainSpec(framework="python", train_loop_per_worker=LOOP, resume_from=uri)
    at = {"name": "search", "storage_path": str(tmp_path)}
    space = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
    search, _ = with_checkpoints(TuneSpec(train=train, param_space=space, metric="m", mode="min", run_config=at), here=True)
    assert search.train.resume_from.uri.endswith("/checkpoint_c")  # type: ignore[attr-defined]
    judging = EvaluateSpec(
        evaluate="json:loads", checkpoint=uri, compare_to=uri, must_beat=["accuracy"], run_config={**at, "name": "judged"}
    )
    judged, remarks = with_checkpoints(judging, here=True)
    assert judged.checkpoint == judged.compare_to  # type: ignore[attr-defined]
    assert len(remarks) == 2


def test_a_step_runs_with_the_choice_says_so_and_a_retry_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rundir = source(tmp_path)
    spec = spec_at(tmp_path, resume_from=rundir.uri)
    with FakeCluster(shares_this_machine=True) as cluster:
        first = run(spec, cluster)
        assert "taking its latest checkpoint, checkpoint_c" in capsys.readouterr().err
        assert RunDir.at(first.run.uri).read_spec().resume_from == reference(rundir, "checkpoint_c")  # type: ignore[attr-defined]
        source(tmp_path, {**LOSSES, "checkpoint_d": 0.0})
        assert run(spec, cluster).run == first.run


@pytest.mark.parametrize("kind", ["file", "storage", "rays", "nothing", "missing"])
def test_a_path_that_is_neither_a_checkpoint_nor_a_run_with_one_is_refused_before_the_submit(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "file").write_text("x")
    source(tmp_path / "storage")
    (tmp_path / "rays" / "checkpoint_2026").mkdir(parents=True)
    (tmp_path / "rays" / "checkpoint_manager_snapshot.json").touch()
    source(tmp_path / "nothing", {})
    given = tmp_path / kind if kind != "nothing" else tmp_path / "nothing" / "source"
    words = {
        "file": "a file; expected a checkpoint, which is a folder, or a run directory",
        "storage": "a folder of runs; expected one of them, like 'source', or a checkpoint",
        "rays": "a folder of Ray's own; expected one of its checkpoints (checkpoint_2026)",
        "nothing": "a run without a checkpoint; expected one that reported one",
        "missing": "which does not exist or was deleted; expected a checkpoint",
    }[kind]
    with FakeCluster(shares_this_machine=True) as cluster:
        with pytest.raises(SpecError) as caught:
            run(spec_at(tmp_path, resume_from=str(given)), cluster)
        assert cluster.submits == 0
    assert caught.value.message == f"resume_from: got {str(given)!r}, {words}"


def test_a_run_that_makes_no_checkpoints_is_refused_by_its_kind(tmp_path: Path) -> None:
    spec = EvaluateSpec(evaluate="json:loads", checkpoint="/x", run_config={"name": "e", "storage_path": str(tmp_path)})
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    with pytest.raises(SpecError, match="a run of kind 'evaluate' without a result yet; expected a checkpoint"):
        chosen(spec_at(tmp_path, resume_from=rundir.uri))
    rundir.write_result(EvaluationResult(run=RunRef(uri=rundir.uri, name="e"), passed=True))
    with pytest.raises(SpecError, match="a run of kind 'evaluate'; expected a checkpoint, or the run of a training"):
        chosen(spec_at(tmp_path, resume_from=rundir.uri))
