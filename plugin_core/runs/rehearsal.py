"""Compares a training that was killed and resumed with the same training without kills, from their workers' notes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import COUNTERS
from plugin_core.specs.json_values import is_number

#: The folder in a run's `.step/` that holds its workers' notes.
FOLDER = "rehearsal"
RESUMES, FORGETS, UNCLEAR = "resumes", "forgets", "cannot be compared"
#: What is forgotten → the line that fixes it.
MENDS = {
    "checkpoint": "restore from ray.train.get_checkpoint() before the first step",
    "epoch": "save the counter in the checkpoint, and start the loop from the next one",
    "weights": "model.load_state_dict(checkpoint['model'])",
    "optimizer": "optimizer.load_state_dict(checkpoint['optimizer'])",
    "scheduler": "scheduler.load_state_dict(checkpoint['scheduler'])",
    "scaler": "scaler.load_state_dict(checkpoint['scaler'])",
    "sampler": "sampler.set_epoch(epoch) with the resumed epoch, or plugin_core.loops.rows for a position within one",
    "random numbers": "save torch.get_rng_state() (and NumPy's and Python's, if used), and set it after the resume",
    "": "compare what the train function holds with what it puts into its checkpoint",
}
#: What a note contains besides metrics and random numbers.
_STATE = ("weights", "optimizer", "lr", "scheduler", "scaler", "data")

Key = tuple[str, int, int]
Notes = dict[Key, dict[str, Any]]


@dataclass(frozen=True)
class Finding:
    """`what`: a key of `MENDS`; `report`: the report after or before which it shows; `says`: one sentence."""

    what: str
    report: int
    rank: int
    says: str
    mend: str


@dataclass(frozen=True)
class Verdict:
    """`verdict`: RESUMES, FORGETS or UNCLEAR; `why`: one sentence. `resumed`: the reports after which the training
    resumed; `compared`: what could be compared; `left_out`: what differs even between two straight runs."""

    verdict: str
    why: str
    findings: tuple[Finding, ...] = ()
    resumed: tuple[int, ...] = ()
    compared: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class Noted:
    """The notes of a run's workers: a list per process, with the older processes of a rank first."""

    processes: list[list[dict[str, Any]]] = field(default_factory=list)

    @classmethod
    def read(cls, rundir: RunDir) -> Noted:
        """Raises StorageError."""
        place = rundir.step.child(FOLDER)
        files = [json.loads(place.child(name).read() or b"[]") for name in place.names() if name.endswith(".json")]
        return cls(sorted(filter(None, files), key=lambda lines: (lines[0]["rank"], lines[0]["time"])))

    def notes(self) -> Notes:
        return {_key(line): line for lines in self.processes for line in lines}

    def resumed(self) -> Iterator[list[dict[str, Any]]]:
        """The notes of the processes that followed others of their rank."""
        ranks = set()
        for lines in self.processes:
            if lines[0]["rank"] in ranks:
                yield lines
            ranks.add(lines[0]["rank"])


def compare(straight: Noted, again: Noted, killed: Noted) -> Verdict:
    """`straight`, `again`: the same training twice without a kill; `killed`: with kills."""
    first, second = straight.notes(), again.notes()
    steady, left_out = _steady(first, second)
    if not first or first.keys() != second.keys():
        return Verdict(UNCLEAR, "two straight runs make different reports; expected the same ones each time")
    if not any(name == "weights" or name.startswith("metrics.") for name in steady) or "weights" in left_out:
        names = ", ".join(sorted(left_out)) or "reports"
        why = f"two straight runs differ in {names}; expected a train function that does the same each time, by its seed"
        return Verdict(UNCLEAR, why, left_out=tuple(sorted(left_out)))
    later = list(killed.resumed())
    short = _ended_before(first, killed.notes())
    if not later and short is None:
        return Verdict(UNCLEAR, "no worker was killed: the training ended before; expected more reports")
    starts = sorted({_start(lines) for lines in later})
    seen = tuple(sorted(steady)), tuple(sorted(left_out))
    asked = any(line.get("asked") for lines in later for line in lines)
    if later and starts == [0]:
        kept = any(line.get("checkpoint") for line in first.values())
        why = "no checkpoint was there yet at a kill; expected more reports" if kept else "the train function reports none"
        return Verdict(UNCLEAR, f"there is nothing to resume from: {why}", (), (), *seen)
    # what starts from a checkpoint of a process that already differs says nothing about the resume
    since = min((_start(lines) for lines in later if _differs(first, lines, steady)), default=None)
    if since is None and short is None:
        return Verdict(RESUMES, "", (), tuple(starts), *seen)
    first_ones = [lines for lines in later if _start(lines) == since]
    findings = list(_findings(first, first_ones, steady, asked)) if first_ones else []
    if short is not None and all(each.what not in ("checkpoint", "epoch") for each in findings):
        findings.insert(0, short)
    named = " and ".join(each.what for each in findings if each.what) or "something"
    return Verdict(FORGETS, f"the train function forgets: {named}", tuple(findings), tuple(starts), *seen)


def _key(line: dict[str, Any]) -> Key:
    return line["what"], line["rank"], line["index"]


def _start(lines: list[dict[str, Any]]) -> int:
    line = lines[0]
    return int(line["index"]) if line["what"] == "enters" else int(line["index"]) - 1


def _flat(line: dict[str, Any]) -> dict[str, Any]:
    found = {name: line[name] for name in _STATE if line.get(name) not in (None, "", [])}
    for group in ("metrics", "random"):
        found |= {f"{group}.{name}": value for name, value in line.get(group, {}).items()}
    return found


def _steady(first: Notes, second: Notes) -> tuple[set[str], set[str]]:
    """What is the same in two straight runs, and what is not."""
    steady: set[str] = set()
    left_out: set[str] = set()
    for key in first.keys() & second.keys():
        one, other = _flat(first[key]), _flat(second[key])
        for name in one.keys() | other.keys():
            (steady if one.get(name) == other.get(name) else left_out).add(name)
    return steady - left_out, left_out


def _differs(first: Notes, lines: list[dict[str, Any]], steady: set[str]) -> bool:
    """Whether anything that matters differs in a resumed process. Random numbers matter only through their effects."""
    for line in (line for line in lines if line["what"] == "reports"):
        expected = first.get(_key(line))
        if expected is None or _changes(expected, line, steady):
            return True
    return False


def _ended_before(first: Notes, killed: Notes) -> Finding | None:
    """A finding if the training with kills ends after fewer reports than the one without: it miscounts. Notes of single
    reports may be missing for another reason: their rank went down with another one."""
    for rank in sorted({rank for _, rank, _ in first}):
        last, expected = (
            max((index for what, of, index in notes if (what, of) == ("reports", rank)), default=0)
            for notes in (killed, first)
        )
        if last < expected:
            says = f"the resumed training ends after report {last}, the straight one makes {expected}"
            return Finding("epoch", last, rank, says, MENDS["epoch"])
    return None


def _changes(expected: dict[str, Any], line: dict[str, Any], steady: set[str]) -> list[str]:
    one, other = _flat(expected), _flat(line)
    names = (name for name in one.keys() | other.keys() if name in steady and not name.startswith("random."))
    return sorted(name for name in names if one.get(name) != other.get(name))


def _findings(first: Notes, later: list[list[dict[str, Any]]], steady: set[str], asked: bool) -> Iterator[Finding]:
    named: set[str] = set()
    for lines in later:
        for what, says, line in _of_process(first, lines, steady, asked):
            if what not in named:
                named.add(what)
                yield Finding(what, _start(lines), line["rank"], says, MENDS[what])
    if not named:
        reports = (each for lines in later for each in lines if each["what"] == "reports")
        line = next(each for each in reports if _key(each) not in first or _changes(first[_key(each)], each, steady))
        expected = first.get(_key(line))
        names = ", ".join(_changes(expected, line, steady)) if expected is not None else "the number of its reports"
        says = f"after the resume it differs in {names}, and nothing that can be seen from outside explains it"
        yield Finding("", line["index"], line["rank"], says, MENDS[""])


def _of_process(
    first: Notes, lines: list[dict[str, Any]], steady: set[str], asked: bool
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What one resumed process forgot: a key of `MENDS`, and a sentence."""
    start, line = _start(lines), lines[0]
    if not asked:
        # everything else follows from this
        yield "checkpoint", f"it resumed after report {start}, and never called ray.train.get_checkpoint()", line
        return
    counted = True
    report = next((each for each in lines if each["what"] == "reports"), None)
    if report is not None and (expected := first.get(_key(report))) is not None:
        for name in COUNTERS:
            old, new = expected["metrics"].get(name), report["metrics"].get(name)
            if f"metrics.{name}" in steady and is_number(old) and old != new:
                yield "epoch", f"report {report['index']} has {name}={new}, where it was {old} without the kill", report
                counted = False
                break
    expected = first.get(_key(line)) if line["what"] == "enters" else None
    if expected is None:
        return
    changes = {name for name in _STATE if name in steady and expected.get(name) != line.get(name)}
    at = f"at the first step after report {start}"
    if "weights" in changes:
        yield "weights", f"{at} the weights are not those of the checkpoint's report", line
    if "optimizer" in changes:
        how = "the optimizer's state is empty" if line["optimizer_is_empty"] else "the optimizer's state is another one"
        yield "optimizer", f"{at} {how}", line
    if changes & {"lr", "scheduler"}:
        says = f"{at} the learning rate is {_short(line['lr'])}, where it was {_short(expected['lr'])}"
        if line["lr"] == expected["lr"]:
            says = f"{at} the scheduler is at {line['scheduler']}, where it was at {expected['scheduler']}"
        yield "scheduler", says, line
    if "scaler" in changes:
        yield "scaler", f"{at} {_of_scalers(line['scaler'], expected['scaler'])}", line
    random = [name for name in expected["random"] if f"random.{name}" in steady and _is_used(first, line["rank"], name)]
    other = [name for name in random if expected["random"][name] != line["random"].get(name)]
    # a loader that shuffles without a generator draws its order from PyTorch's random numbers
    drawn = bool(line.get("drawn")) and "torch" in other
    if "data" in changes and counted and not drawn:
        yield "sampler", f"{at} the batch is another one than without the kill", line
    # the findings so far explain the rest; PyTorch's loaders draw a number per epoch even if nothing depends on it
    explained = changes & {"weights", "optimizer", "lr", "scheduler", "scaler"} or ("data" in changes and not drawn)
    if other and counted and not explained:
        says = f"{at} the random numbers of {', '.join(other)} are others than without the kill"
        follows = ", and the data loader draws the order of its batches from them" if drawn and "data" in changes else ""
        yield "random numbers", says + follows, line


def _is_used(first: Notes, rank: int, name: str) -> bool:
    """Whether a straight run draws from these random numbers while it trains."""
    states = {line["random"].get(name) for (what, of, _), line in first.items() if what == "enters" and of == rank}
    return len(states) > 1


def _of_scalers(now: list[list[float]], before: list[list[float]]) -> str:
    """What differs between the scalers now and without the kill: their scales, or else the steps they counted."""
    scales, steps = ([_short([each[part] for each in scalers]) for scalers in (now, before)] for part in (0, 1))
    if scales[0] != scales[1]:
        return f"the scale is {scales[0]}, where it was {scales[1]}"
    return f"the scaler has counted {steps[0]} steps at its scale, where it had counted {steps[1]}"


def _short(values: list[float]) -> str:
    different = sorted(set(values))
    return ", ".join(f"{value:g}" for value in different[:3])
