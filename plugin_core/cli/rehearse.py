"""`raytrain rehearse`: does a training really resume?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from plugin_core.cli.clusters import Address, Token, cluster_at
from plugin_core.cli.output import Json, err, print_json
from plugin_core.errors.plain_text import plain

#: Exit codes for outcomes that are not errors: see `exit_codes`.
FORGETS, UNCLEAR = 22, 23


def rehearse(
    spec_file: Annotated[Path, typer.Argument(help="the training as YAML or JSON")],
    reports: Annotated[int, typer.Option(help="end each run after this many reports", min=3)] = 6,
    kills: Annotated[int, typer.Option(help="how many workers to kill", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="seed for the times and ranks of the kills")] = 0,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="another value in train_loop_config (YAML)")
    ] = None,
    storage: Annotated[str | None, typer.Option(help="keep the runs there (default: they are deleted)")] = None,
    address: Address = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Run a shortened training twice straight through and once with kills, and name what it forgets to restore."""
    from plugin_core.runs.rehearsal import FORGETS as FORGOT
    from plugin_core.runs.rehearsal import RESUMES
    from plugin_core.specs import load_spec
    from plugin_core.supervisor.rehearse import rehearse as rehearsed

    found = rehearsed(
        load_spec(spec_file),
        cluster_at(address, token),
        reports=reports,
        kills=kills,
        seed=seed,
        config=dict(map(_change, change or [])),
        storage=storage,
        log=lambda line: err.print(plain(line), markup=False),
    )
    if as_json:
        print_json(asdict(found))
    else:
        _show(found)
    if found.verdict != RESUMES:
        sys.exit(FORGETS if found.verdict == FORGOT else UNCLEAR)


def _change(given: str) -> tuple[str, Any]:
    import yaml

    name, equals, value = given.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"got {given!r}; expected NAME=VALUE, such as epochs=2", param_hint="--set")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError:
        raise typer.BadParameter(f"got {given!r}; expected a value in YAML", param_hint="--set") from None


def _show(found: Any) -> None:
    if found.resumed:
        print(f"resumed after report {', '.join(map(str, found.resumed))}")
    if found.compared:
        print(f"compared: {', '.join(found.compared)}")
    if found.left_out:
        print(f"left out, as two straight runs differ in it: {', '.join(found.left_out)}")
    print(plain(found.verdict + (f": {found.why}" if found.why else "")))
    for finding in found.findings:
        print(plain(f"- {finding.what or 'unknown'}: {finding.says} (rank {finding.rank})"))
        print(plain(f"  {finding.mend}"))
