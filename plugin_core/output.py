"""The folder that a batch inference writes into: whose it is, and which of what lies there counts.

    <output_path>/_RUN.json                 whose it is (create if absent)
    <output_path>/attempt-002/…             the files of one attempt, or rows/… of all attempts with a key column; a run's
                                            later generations have g2-attempt-001/… and so on
    <output_path>/_SUCCESS.json             the commit marker: the folder that counts, its files and rows; written last

Readers of parquet, csv and json pass over names that begin with an underscore. The folders of other attempts are deleted
before the marker is written, and a late write of a killed attempt is refused (`fence`), so a reader of the whole never
finds mixed output.
"""

from __future__ import annotations

import json
import re
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.storage import Location

OWNER, MARKER = "_RUN.json", "_SUCCESS.json"
#: The folder that all attempts share when rows have keys.
KEYED = "rows"
_OURS = re.compile(rf"(g\d+-)?(attempt-\d+|{KEYED})$")


def check_output(root: Location, run: Location) -> None:
    """Raise SpecError where the folder holds what is not of this run or its earlier generations."""
    owner = _owner(root)
    if owner is not None and _first_generation(owner) != _first_generation(run.uri):
        raise SpecError(
            f"output_path: given {root.uri!r}, which holds the output of the run {owner}; accepted is an empty or a new"
            " folder, or none: then it is predictions/ in the run directory"
        )
    if owner is None and (found := root.names()):
        raise SpecError(
            f"output_path: given {root.uri!r}, which holds other data ({', '.join(found[:3])}{', …' if found[3:] else ''});"
            " accepted is an empty or a new folder, or none: then it is predictions/ in the run directory"
        )


def claim_output(root: Location, run: Location) -> None:
    """Take the folder for this run. Raises SpecError where another one has it, or took it at this moment."""
    check_output(root, run)
    root.child(OWNER).create(json.dumps({"run": run.uri}).encode())
    check_output(root, run)


def begin(root: Location, attempt: int, keyed: bool, generation: int = 1) -> Location:
    """The folder for this attempt's files."""
    name = KEYED if keyed else f"attempt-{attempt:03}"
    folder = root.child(name if generation == 1 else f"g{generation}-{name}")
    if not keyed:
        folder.delete_dir()
    folder.make_dir()
    return folder


def commit(root: Location, folder: Location, output_format: str, checkpoint: str) -> int:
    """Delete what other attempts and generations left, and say what counts; returns the rows."""
    for name in root.names():
        if _OURS.match(name) and name != folder.name:
            root.child(name).delete_dir()
    files = count_rows(folder, output_format)
    rows = sum(files.values())
    marker = {"folder": folder.name, "format": output_format, "rows": rows, "files": files, "checkpoint": checkpoint}
    root.child(MARKER).write(json.dumps(marker, indent=1).encode())
    return rows


def count_rows(folder: Location, output_format: str) -> dict[str, int]:
    """The rows of each file, by its path in the folder, in order."""
    import pyarrow.dataset

    found = pyarrow.dataset.dataset(folder.path, filesystem=folder.fs, format=output_format)
    inside = folder.path.rstrip("/") + "/"
    files = {fragment.path.removeprefix(inside): fragment.count_rows() for fragment in found.get_fragments()}
    return dict(sorted(files.items()))


def _first_generation(run_uri: str) -> str:
    return re.sub(r"\.g\d+(?=$|\?)", "", run_uri)


def _owner(root: Location) -> Any:
    data = root.child(OWNER).read()
    return json.loads(data).get("run") if data else None
