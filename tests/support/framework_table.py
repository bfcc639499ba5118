"""python -m tests.support.framework_table RESULTS.xml: the table of docs/frameworks.md, from its tests' results."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from example_flows.frameworks import NAMES, example, packages
from plugin_core.specs.extras import version
from plugin_core.specs.frameworks import FRAMEWORKS

PAGE = Path("docs/frameworks.md")
#: The test that shows it.
TEST = "test_continues_after_a_killed_worker_and_in_another_session_with_other_workers"
#: The examples whose workers each write their own part of the checkpoint.
SHARDED = (
    "fsdp",
    "lightning_fsdp",
    "lightning_deepspeed",
    "transformers_deepspeed",
    "accelerate_fsdp",
    "accelerate_deepspeed",
    "deepspeed",
)
#: Why the number of an example's workers cannot change.
INELASTIC = dict.fromkeys(
    ("deepspeed", "lightning_deepspeed", "transformers_deepspeed", "accelerate_deepspeed"),
    "no: ZeRO shards are tied to the worker count",
)


def results(file: Path) -> dict[str, str]:
    """Example → passed, skipped or failed."""
    found = {}
    for case in ElementTree.parse(file).iter("testcase"):
        match = re.fullmatch(rf"{TEST}\[(\w+)\]", case.get("name", ""))
        if match:
            ends = {child.tag for child in case}
            found[match[1]] = "failed" if ends & {"failure", "error"} else "skipped" if ends else "passed"
    return found


def table(found: dict[str, str]) -> str:
    lines = ["| example | framework | versions | trains and resumes | sharded | elastic |", "|---|---|---|---|---|---|"]
    for name in NAMES:
        framework = FRAMEWORKS[example(name).SPEC.framework]
        versions = ", ".join(f"{package} {version(package) or 'not installed'}" for package in packages(name))
        outcome = found.get(name, "not run")
        word = "yes" if outcome == "passed" else outcome
        row = [name, framework.name, versions, word, word if name in SHARDED else "–", INELASTIC.get(name, word)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    begin, end = "<!-- table -->\n", "<!-- end of table -->"
    page = PAGE.read_text()
    before, after = page.split(begin)[0], page.split(end)[1]
    PAGE.write_text(f"{before}{begin}{table(results(Path(sys.argv[1])))}\n{end}{after}")
