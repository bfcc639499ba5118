"""python -m tests.framework_table RESULTS.xml: the table of docs/frameworks.md, out of the results of its tests."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from example_flows.frameworks import NAMES, example
from plugin_core.frameworks import FRAMEWORKS
from plugin_core.packages import version

PAGE = Path("docs/frameworks.md")
#: What a column is shown by.
COLUMNS = {
    "trains and resumes": "test_goes_on_after_a_killed_worker_and_in_another_session",
    "elastic": "test_a_second_worker_joins",
}
#: The examples whose workers each write their own part of the checkpoint.
SHARDED = ("fsdp", "deepspeed")
#: Why a test of a framework is not there.
NOT = {("deepspeed", "elastic"): "no: ZeRO's parts are of so many workers"}


def results(file: Path) -> dict[tuple[str, str], str]:
    """By test and example: passed, skipped or failed."""
    found = {}
    for case in ElementTree.parse(file).iter("testcase"):
        match = re.fullmatch(r"(\w+)\[([\w-]+)\]", case.get("name", ""))
        if match:
            ends = {child.tag for child in case}
            found[match[1], match[2]] = "failed" if ends & {"failure", "error"} else "skipped" if ends else "passed"
    return found


def table(found: dict[tuple[str, str], str]) -> str:
    lines = ["| example | framework | versions | trains and resumes | sharded | elastic |", "|---|---|---|---|---|---|"]
    for name in NAMES:
        framework = FRAMEWORKS[example(name).SPEC.framework]
        versions = ", ".join(f"{package} {version(package) or 'not installed'}" for package in framework.packages)
        cells = {
            column: NOT.get((name, column)) or _word(found.get((test, name), "not run")) for column, test in COLUMNS.items()
        }
        resumes = cells["trains and resumes"]
        row = [name, framework.name, versions, resumes, resumes if name in SHARDED else "–", cells["elastic"]]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _word(outcome: str) -> str:
    return "yes" if outcome == "passed" else outcome


if __name__ == "__main__":
    begin, end = "<!-- table -->\n", "<!-- end of table -->"
    page = PAGE.read_text()
    before, after = page.split(begin)[0], page.split(end)[1]
    PAGE.write_text(f"{before}{begin}{table(results(Path(sys.argv[1])))}\n{end}{after}")
