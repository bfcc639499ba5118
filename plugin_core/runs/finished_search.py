"""A finished search, as read by one that continues it: its table of trials and their last checkpoints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.runs.run_checkpoint import best_and_latest
from plugin_core.specs import TrainSpec, TuneSpec, search_space
from plugin_core.specs.json_values import is_number
from plugin_core.specs.parts import all_functions, is_name_of_value
from plugin_core.specs.results import CheckpointRef, TrainResult
from plugin_core.specs.search_space import FREE
from plugin_core.specs.space_functions import with_functions
from plugin_core.storage.stored_files import Object, parse

#: The table of a search's trials in its run directory, and the most bytes of it that are read.
TABLE = "trials.json"
TABLE_BYTES = 2**30
#: In a search's `.step/`: what it took over from the finished search that it continues.
PLAN = "resumed.json"
#: The field that names the finished search.
FIELD = "resume_from.search"


@dataclass(frozen=True)
class FinishedSearch:
    """`rows`: those of its table, without failed trials; `run` in a row is the URI of the trial's run."""

    rundir: RunDir
    spec: TuneSpec
    rows: list[dict[str, Any]]

    @property
    def best(self) -> dict[str, Any] | None:
        return best_of(self.rows, self.spec)


def best_of(rows: list[dict[str, Any]], spec: TuneSpec) -> dict[str, Any] | None:
    """The row with the best metric; None if no trial has a numeric one."""
    scored = [row for row in rows if row["status"] != "failed" and is_number(row.get(spec.metric))]
    best = max if spec.mode == "max" else min
    return best(scored, key=lambda row: row[spec.metric]) if scored else None


def leg_of(search: RunDir, row: dict[str, Any]) -> RunDir:
    """The run of a row's trial: a child of the search or, if the row has a URI, another search's."""
    return RunDir.at(row["run"]) if "/" in row["run"] else search.child(row["run"])


def read(uri: str) -> FinishedSearch:
    """Read a finished search. Raises SpecError if the run is not one, StorageError if it cannot be read now."""
    rundir = RunDir.at(uri)
    if not rundir.exists():
        raise SpecError(f"{FIELD}: got {uri!r}, which is not a run directory; expected that of a finished search")
    spec = rundir.read_spec()
    if not isinstance(spec, TuneSpec):
        raise SpecError(f"{FIELD}: got {uri!r}, a run of kind {spec.kind!r}; expected a search")
    if not rundir.has_result():
        raise SpecError(f"{FIELD}: got {uri!r}, which has no result yet; expected a finished search")
    place = rundir.location.child(TABLE)
    data = place.read(TABLE_BYTES)
    if data is None:
        raise SpecError(f"{FIELD}: got {uri!r}, whose table {TABLE} is missing; expected a finished search")
    rows = [
        {**row, "run": leg_of(rundir, row).uri}
        for row in parse(list[Object], data, place.uri)
        if isinstance(row.get("run"), str) and isinstance(row.get("config"), dict) and row.get("status") != "failed"
    ]
    return FinishedSearch(rundir, spec, rows)


def check(spec: TuneSpec, finished: FinishedSearch) -> None:
    """Raise SpecError if a search cannot continue the finished one in the way its spec asks for."""
    wanted = f"{spec.metric!r} ({spec.mode})"
    if (finished.spec.metric, finished.spec.mode) != (spec.metric, spec.mode):
        theirs = f"{finished.spec.metric!r} ({finished.spec.mode})"
        raise SpecError(f"{FIELD}: got a search for the best {theirs}; expected one for {wanted}, as here")
    if finished.best is None:
        raise SpecError(f"{FIELD}: got {finished.rundir.uri!r}, in which no trial has {wanted}; expected one that has")
    further_configs(spec, finished)
    if (left := grid_left(spec, finished)) is not None and not left:
        raise SpecError(
            f"param_space: got a grid that {finished.rundir.uri} has searched; expected more values, or more num_samples"
        )


def further_configs(spec: TuneSpec, finished: FinishedSearch) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows of the trials that train further, with their configs in terms of this spec's functions. Raises SpecError for
    a trial that this spec makes invalid."""
    assert spec.resume_from is not None
    best = [finished.best] if finished.best is not None else []
    rows = {"none": [], "all": finished.rows, "best": best}[spec.resume_from.trials]
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    valid: set[str] = set()
    names = _names(spec)
    for row in rows:
        config = with_functions(row["config"], _as_named_now(names))
        checked = json.dumps({name: value for name, value in config.items() if name not in FREE}, sort_keys=True)
        if checked not in valid:
            _check_config(spec, config, row, names)
            valid.add(checked)
        found.append((row, config))
    return found


def _check_config(spec: TuneSpec, config: dict[str, Any], row: dict[str, Any], names: set[str]) -> None:
    trial = row["run"].rpartition("/")[2]
    try:
        train = spec.trial_spec(config)
    except SpecError as exc:
        raise SpecError(f"{FIELD}: {trial} would be an invalid TrainSpec now: {exc.message}") from None
    for field, value in all_functions(train).items():
        if is_name_of_value(value) and value not in names:
            raise SpecError(
                f"{FIELD}: {trial} has the {field} {value.partition('#')[0].removeprefix('value:')!r}, which neither train"
                " nor param_space has; expected it there"
            )


def _names(spec: TuneSpec) -> set[str]:
    """The names of the spec's functions that are sent by value."""
    data = TuneSpec.model_validate(spec.to_json())
    return {name for name in all_functions(data).values() if is_name_of_value(name)}


def _as_named_now(names: set[str]) -> Callable[[str], str]:
    """Renames a function of a finished search. Its code may have changed since, so a match without the code's digest is
    enough, if only one of `names` matches."""

    def rename(text: str) -> str:
        if text in names or not is_name_of_value(text):
            return text
        alike = [name for name in names if name.partition("#")[0] == text.partition("#")[0]]
        return alike[0] if len(alike) == 1 else text

    return rename


def grid_left(spec: TuneSpec, finished: FinishedSearch) -> list[dict[str, Any]] | None:
    """For a space whose only samplers are grids: the configs that the finished search lacks, each at most `num_samples`
    times. None for any other space, or if trials train further."""
    assert spec.resume_from is not None
    grid = search_space.whole_grid(spec.to_json()["param_space"])
    if grid is None or spec.resume_from.trials != "none":
        return None
    rename = _as_named_now(_names(spec))
    have = Counter(_key(with_functions(row["config"], rename)) for row in finished.rows)
    left = []
    for config in grid:
        left += [config] * max(0, spec.num_samples - have[_key(config)])
    return left


def _key(config: dict[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def checkpoints_of(leg: RunDir) -> tuple[CheckpointRef | None, CheckpointRef | None]:
    """The best checkpoint of a trial by its score, if it ranks them, and its last one."""
    if not leg.exists():
        return None, None
    result = leg.result()
    if isinstance(result, TrainResult):
        return result.best_checkpoint, result.checkpoint
    spec = leg.read_spec()
    assert isinstance(spec, TrainSpec)
    return best_and_latest(leg, spec, History.read(leg))
