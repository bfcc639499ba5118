"""The output folder of a batch inference: its owner, and which of its files are committed.

    <output_path>/_RUN.json                 the owning run (create if absent)
    <output_path>/attempt-002/…             the files of one attempt, or rows/… of all attempts with a key column; a run's
                                            later generations have g2-attempt-001/… and so on
    <output_path>/_COMMIT-3f9a01bc.json     the committed attempt's folder (create if absent; by the run's first nonce)
    <output_path>/_SUCCESS.json             the commit marker: the committed folder, its files and rows; written last

Readers of parquet, csv and json skip names that begin with an underscore. The folders of earlier attempts are deleted
before the marker is written, and late writes of a killed attempt are rejected (`fence`), so reading the whole folder never
returns mixed output.

An attempt may be suspended at any point and resume alongside a later one. So exactly one attempt of a run creates the
commit, later attempts adopt it, and no attempt ever deletes the folder of a later one.
"""

from __future__ import annotations

import json
import re
from typing import Any

from plugin_core.errors import FencedError, InfrastructureError, SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.storage.location import Location
from plugin_core.storage.stored_files import Object, parse

OWNER, MARKER = "_RUN.json", "_SUCCESS.json"
COMMIT = "_COMMIT-"
#: The folder that all attempts share when rows have keys.
KEYED = "rows"
_OURS = re.compile(rf"(?:g(\d+)-)?(?:attempt-(\d+)|{KEYED})$")


def check_output(root: Location, run: Location) -> None:
    """Raise SpecError if the folder holds anything not from this run or its earlier generations."""
    owner = _owner(root)
    if owner is not None and _first_generation(owner) != _first_generation(run.uri):
        raise SpecError(
            f"output_path: got {root.uri!r}, which holds the output of the run {owner}; expected an empty or new"
            " folder, or none for predictions/ in the run directory"
        )
    if owner is None and (found := root.names()):
        raise SpecError(
            f"output_path: got {root.uri!r}, which holds other data ({', '.join(found[:3])}{', …' if found[3:] else ''});"
            " expected an empty or new folder, or none for predictions/ in the run directory"
        )


def claim_output(root: Location, run: Location) -> None:
    """Claim the folder for this run. Raises SpecError if another run has it, or claims it first."""
    check_output(root, run)
    root.child(OWNER).create(json.dumps({"run": run.uri}).encode())
    check_output(root, run)


def begin(root: Location, attempt: int, keyed: bool, generation: int = 1) -> Location:
    """Create the folder for this attempt's files."""
    name = KEYED if keyed else f"attempt-{attempt:03}"
    folder = root.child(name if generation == 1 else f"g{generation}-{name}")
    if not keyed:
        folder.delete_dir()
    folder.make_dir()
    return folder


def drop_unrecorded(folder: Location, records: Location, fence: Fence) -> None:
    """Empty the shared folder if there are no records of the rows in it: they are from a run of this name whose directory
    was deleted by hand, and are predicted again."""
    if folder.names() and not records.names():
        fence.check()
        folder.delete_dir()
        folder.make_dir()


def committed(root: Location, fence: Fence) -> dict[str, Any] | None:
    """The commit record of an earlier attempt that was stopped before it published."""
    file = root.child(_commit(fence))
    return parse(Object, data, file.uri) if (data := file.read()) else None


def commit(root: Location, folder: Location, output_format: str, checkpoint: str, written: int, fence: Fence) -> int:
    """Commit this folder, to which this attempt wrote `written` rows; returns the rows in it.

    Raises InfrastructureError if rows are missing, FencedError if a later attempt owns the run.
    """
    files = count_rows(folder, output_format)
    rows = sum(files.values())
    if rows < written:
        raise InfrastructureError(f"{folder.uri} holds {rows} of the {written} rows written; some files are missing")
    record = {"folder": folder.name, "format": output_format, "rows": rows, "files": files, "checkpoint": checkpoint}
    fence.check()
    if not root.child(_commit(fence)).create(json.dumps(record, indent=1).encode()):
        raise FencedError(f"another attempt has committed {root.uri}; attempt {fence.attempt} stops writing")
    publish(root, record, fence)
    return rows


def publish(root: Location, record: dict[str, Any], fence: Fence) -> None:
    """Delete leftovers of other attempts and generations, then write the marker. Called by the committing attempt, or by a
    later one that continues after it."""
    last = (RunDir.at(fence.run_uri).generation, fence.attempt)
    for name in root.names():
        old = _OURS.match(name) and name != record["folder"] and _age(name) <= last
        if old or (name.startswith(COMMIT) and name != _commit(fence)):
            fence.check()
            place = root.child(name)
            place.delete_dir() if old else place.delete()
    fence.check()
    root.child(MARKER).write(json.dumps(record, indent=1).encode())


def _commit(fence: Fence) -> str:
    """Unique to this run: a run recreated after its directory was deleted by hand has a new first receipt."""
    first = RunDir.at(fence.run_uri).outermost.receipt(1)
    return f"{COMMIT}{first.nonce if first else 'none'}.json"


def _age(name: str) -> tuple[int, int]:
    """Generation and attempt of a folder; the shared one counts as attempt 1."""
    match = _OURS.match(name)
    assert match is not None
    return int(match[1] or 1), int(match[2] or 1)


def count_rows(folder: Location, output_format: str) -> dict[str, int]:
    """Rows per file, by relative path, sorted."""
    import pyarrow.csv
    import pyarrow.dataset

    form: Any = output_format
    if output_format == "csv":
        # a row with a single null is an empty line, and text values may contain line breaks
        options = pyarrow.csv.ParseOptions(ignore_empty_lines=False, newlines_in_values=True)
        form = pyarrow.dataset.CsvFileFormat(parse_options=options)
    found = pyarrow.dataset.dataset(folder.path, filesystem=folder.fs, format=form)
    inside = folder.path.rstrip("/") + "/"
    files = {fragment.path.removeprefix(inside): fragment.count_rows() for fragment in found.get_fragments()}
    return dict(sorted(files.items()))


def _first_generation(run_uri: str) -> str:
    return re.sub(r"\.g\d+(?=$|\?)", "", run_uri)


def _owner(root: Location) -> Any:
    file = root.child(OWNER)
    return parse(Object, data, file.uri).get("run") if (data := file.read()) else None
