"""How a training that was killed is compared with one straight through: on notes, without a cluster."""

from pathlib import Path
from typing import Any

import pytest
import torch

from plugin_core.driver.train.rehearsal.digests import digest, random_states
from plugin_core.errors import SpecError
from plugin_core.runs.rehearsal import FORGETS, RESUMES, UNCLEAR, Noted, Verdict, compare
from plugin_core.specs import TrainSpec, TuneSpec
from plugin_core.supervisor.rehearse import rehearse

REPORTS = 5


def process(rank: int = 0, first: int = 1, last: int = REPORTS, when: float = 0.0, **wrong: Any) -> list[dict[str, Any]]:
    """The notes of a process that makes the reports `first` to `last`; `wrong`: values that it has instead."""
    lines: list[dict[str, Any]] = []
    for index in range(first, last + 1):
        lines.append(line("enters", rank, index - 1, when, **wrong))
        lines.append(line("reports", rank, index, when, **wrong))
    return lines


def line(what: str, rank: int, index: int, when: float, **wrong: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        **{"what": what, "rank": rank, "index": index, "time": when, "optimizer_is_empty": "optimizer" in wrong},
        **{"weights": f"w{index}", "optimizer": f"o{index}", "lr": [0.1 / (index + 1)], "scheduler": [index]},
        **{"scaler": [[16.0 * index, 2.0]], "data": [f"d{index}"], "drawn": False},
        "random": {"torch": f"r{index}", "python": "still"},
    }
    if what == "reports":
        found |= {"metrics": {"epoch": index - 1, "loss": 1 / index}, "checkpoint": f"checkpoint_{index}", "asked": True}
        del found["random"]
    metrics = {name: value for name, value in wrong.items() if name in ("epoch", "loss") and what == "reports"}
    other = {name: value for name, value in wrong.items() if name not in ("epoch", "loss")}
    found |= {name: value for name, value in other.items() if name in found}
    if metrics:
        found["metrics"] = {**found["metrics"], **metrics}
    return found


def verdict(**wrong: Any) -> Verdict:
    """Of a training that was killed after report 3, and whose second process is wrong in something."""
    killed = Noted([process(last=3), process(first=4, when=1.0, **wrong)])
    return compare(Noted([process()]), Noted([process()]), killed)


def test_the_same_reports_after_a_resume_are_a_training_that_resumes() -> None:
    assert verdict().verdict == RESUMES
    assert verdict().resumed == (3,)
    repeated = Noted([process(last=3), process(first=3, when=1.0)])
    assert compare(Noted([process()]), Noted([process()]), repeated).verdict == RESUMES


@pytest.mark.parametrize(("wrong", "what"), [
    ({"asked": False, "epoch": 0, "weights": "fresh", "loss": 9.0}, ["checkpoint"]),
    ({"epoch": 0, "data": ["d0"]}, ["epoch"]),
    ({"weights": "fresh"}, ["weights"]),
    ({"optimizer": "fresh", "loss": 9.0}, ["optimizer"]),
    ({"scheduler": [0]}, ["scheduler"]),
    ({"lr": [0.1], "loss": 9.0}, ["scheduler"]),
    ({"scaler": [[16.0, 2.0]]}, ["scaler"]),
    ({"data": ["d0"], "loss": 9.0}, ["sampler"]),
    ({"random": {"torch": "r0", "python": "still"}, "loss": 9.0}, ["random numbers"]),
    ({"optimizer": "fresh", "scheduler": [0]}, ["optimizer", "scheduler"]),
    ({"random": {"torch": "r0", "python": "still"}, "data": ["d0"]}, ["sampler"]),
    ({"random": {"torch": "r0", "python": "still"}, "data": ["d0"], "drawn": True}, ["random numbers"]),
    ({"data": ["d0"], "drawn": True}, ["sampler"]),
    ({"loss": 9.0}, [""]),
])  # fmt: skip
def test_each_forgotten_piece_is_named(wrong: dict[str, Any], what: list[str]) -> None:
    found = verdict(**wrong)
    assert found.verdict == FORGETS
    assert [finding.what for finding in found.findings] == what


def test_a_scaler_at_the_same_scale_is_told_by_its_steps() -> None:
    straight = Noted([process(scaler=[[16.0, 9.0]])])
    killed = Noted([process(last=3, scaler=[[16.0, 9.0]]), process(first=4, when=1.0, scaler=[[16.0, 0.0]])])
    (finding,) = compare(straight, straight, killed).findings
    assert finding.what == "scaler"
    assert finding.says.endswith("the scaler has counted 0 steps at its scale, where it had counted 9")


def test_what_a_second_resume_takes_over_from_a_wrong_process_is_no_finding() -> None:
    """Its checkpoint is of a training that already differs: weights and optimizer are other ones, and restored."""
    wrong = {"weights": "other", "optimizer": "other", "loss": 9.0}
    first = process(first=3, last=4, when=1.0)
    first[0] = first[0] | {"data": ["d0"]}
    first[1:] = [each | {key: value for key, value in wrong.items() if key != "loss"} for each in first[1:]]
    killed = Noted([process(last=2), first, process(first=5, when=2.0, **wrong)])
    found = compare(Noted([process()]), Noted([process()]), killed)
    assert [(finding.what, finding.report) for finding in found.findings] == [("sampler", 2)]
    assert found.resumed == (2, 4)


def test_a_mistake_that_only_the_second_resume_makes_is_found() -> None:
    killed = Noted([process(last=2), process(first=3, last=4, when=1.0), process(first=5, when=2.0, optimizer="fresh")])
    found = compare(Noted([process()]), Noted([process()]), killed)
    assert [(finding.what, finding.report) for finding in found.findings] == [("optimizer", 4)]


def test_a_training_that_ends_earlier_after_a_resume_counts_wrong() -> None:
    for last, resumed in ((4, [process(first=4, last=4, when=1.0)]), (3, [])):  # the latter ends at once
        found = compare(Noted([process()]), Noted([process()]), Noted([process(last=3), *resumed]))
        assert (found.verdict, [finding.what for finding in found.findings]) == (FORGETS, ["epoch"])
        assert found.findings[0].says == f"the resumed training ends after report {last}, the straight one makes 5"


def test_a_report_that_went_down_with_another_rank_is_no_finding() -> None:
    straight = Noted([process(), process(rank=1)])
    # rank 0 went down before it noted report 3, whose checkpoint is there
    killed = Noted([process(last=2), process(first=4, when=1.0), process(1, last=3), process(1, first=4, when=1.0)])
    assert compare(straight, straight, killed).verdict == RESUMES


def test_random_numbers_that_change_nothing_are_no_finding() -> None:
    assert verdict(random={"torch": "r0", "python": "still"}).verdict == RESUMES


def test_what_differs_between_straight_runs_is_left_out() -> None:
    found = compare(
        Noted([process(loss=1.0)]), Noted([process(loss=2.0)]), Noted([process(last=3), process(first=4, when=1.0)])
    )
    assert (found.verdict, found.left_out) == (RESUMES, ("metrics.loss",))
    unsteady = compare(Noted([process()]), Noted([process(weights="other")]), Noted([process()]))
    assert (unsteady.verdict, unsteady.left_out) == (UNCLEAR, ("weights",))


def test_a_training_that_cannot_be_compared_says_why() -> None:
    assert compare(Noted([process()]), Noted([process(last=4)]), Noted([process()])).why.startswith(
        "two straight runs make"
    )
    assert compare(Noted([process()]), Noted([process()]), Noted([process()])).why.startswith("no worker was killed")
    assert compare(Noted(), Noted(), Noted()).verdict == UNCLEAR
    bare = [{**each, "checkpoint": ""} for each in process()]
    again = Noted([bare[:6], [{**each, "time": 1.0} for each in bare]])
    assert compare(Noted([bare]), Noted([bare]), again).why.endswith("from: the train function reports none")
    late = Noted([process(last=2), process(when=1.0)])
    assert compare(Noted([process()]), Noted([process()]), late).why.endswith("yet at a kill; expected more reports")


def test_each_rehearsal_has_runs_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Under the same names in the same storage, `run` would return the results of the rehearsal before."""
    names: list[str | None] = []

    def noting(spec: TrainSpec, *_: Any, **__: Any) -> None:
        names.append(spec.run_config.name)

    monkeypatch.setattr("plugin_core.supervisor.rehearse.run", noting)
    spec = TrainSpec(framework="python", train_loop_per_worker="devtools.steps:counting_loop")
    for _ in range(2):
        rehearse(spec, storage=str(tmp_path))
    assert len(set(names)) == 6


def test_equal_content_has_an_equal_digest() -> None:
    state = {"a": torch.ones(3, dtype=torch.bfloat16), "b": [1, 2.5, None, "x"], "c": torch.zeros(0)}
    same = {"c": torch.zeros(0), "b": [1, 2.5, None, "x"], "a": torch.ones(3, dtype=torch.bfloat16)}
    assert digest(state) == digest(same)
    for other in (
        {**state, "b": [1]},
        {**state, "a": torch.ones(3)},
        {**state, "a": torch.ones(1, 3, dtype=torch.bfloat16)},
    ):
        assert digest(other) != digest(state)
    assert digest(object()) == digest(object())


def test_drawing_a_random_number_shows() -> None:
    before = random_states()
    torch.rand(1)
    after = random_states()
    assert after["torch"] != before["torch"]
    assert after["python"] == before["python"]


@pytest.mark.parametrize(("options", "sentence"), [
    ({"reports": 2}, "reports: got 2; expected at least 3"),
    ({"kills": 5}, "kills: got 5; expected 1 to 4, with 6 reports"),
    ({"config": {"epoch": 2}}, "config: got 'epoch', which train_loop_config does not have; expected epochs"),
])  # fmt: skip
def test_a_wrong_option_is_refused(options: dict[str, Any], sentence: str) -> None:
    spec = TrainSpec(
        framework="python", train_loop_per_worker="devtools.steps:counting_loop", train_loop_config={"epochs": 3}
    )
    with pytest.raises(SpecError, match=f"^{sentence}"):
        rehearse(spec, **options)
    search = TuneSpec(train=spec, param_space={"seed": {"choice": [1, 2]}}, metric="loss", mode="min")
    with pytest.raises(SpecError, match=r"^kind: got 'tune'; expected 'train'"):
        rehearse(search)
