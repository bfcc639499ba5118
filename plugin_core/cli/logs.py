"""`raytrain logs`: a run's log, from its cluster while that answers, else as the run directory keeps it."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from plugin_core.cli.clusters import Address, Token, cluster_at
from plugin_core.cli.output import err
from plugin_core.cli.places import RunArgument, Storage, attempt_of, open_run
from plugin_core.errors import CLUSTER_ERRORS, SpecError
from plugin_core.errors.plain_text import Text, plain

if TYPE_CHECKING:
    from plugin_core.clusters.base import Cluster
    from plugin_core.clusters.jobs_api import JobsClient
    from plugin_core.runs.directory import Receipt, RunDir
    from plugin_core.runs.kept_log import KeptLog

#: Seconds between two looks with `--follow`, and how long the last lines of a run that has ended are waited for.
EVERY_S, LAST_S = 2.0, 6.0


def logs(
    run: RunArgument,
    attempt: Annotated[int | None, typer.Option(help="which attempt (default: the latest)", min=1)] = None,
    rank: Annotated[int | None, typer.Option(help="what this worker printed, as the run directory keeps it", min=0)] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="keep printing until the attempt ends")] = False,
    storage: Storage = None,
    address: Address = None,
    token: Token = None,
) -> None:
    """Print the log of a run's job: live from its cluster, or as the run directory keeps it."""
    rundir = open_run(run, storage)
    home = rundir.outermost  # has the attempts, and the job
    receipt = home.receipt(attempt_of(rundir, attempt))
    assert receipt is not None  # it was just listed, and is never deleted
    if rank is not None:
        _print_rank(rundir, home, receipt.attempt, rank, follow)
        return
    why, printed = asyncio.run(_print_live(receipt, cluster_at(address, token), bool(address), follow))
    if why:
        _print_kept(home, receipt.attempt, why, printed, follow)


# ---- live


async def _print_live(receipt: Receipt, cluster: Cluster, told: bool, follow: bool) -> tuple[str, int]:
    """Print the log that the cluster has. Returns why it cannot ("" if it did), and how many characters it printed.

    `told`: the user named the cluster, maybe by another address than the run's.
    """
    printed = 0
    if receipt.cluster and receipt.cluster != cluster.identity and not told:
        return f"only {receipt.cluster} has the live one; see --address", 0
    try:
        if not await cluster.lives():
            return "its cluster is gone", 0  # connecting would start another one
        async with await cluster.connect() as client:
            job = await client.job(receipt.submission_id)
            if job is None or not job.node_id:
                return "its cluster does not have the job" if job is None else "its job has not begun", 0
            _say(f"the log of attempt {receipt.attempt}, from its cluster")
            if follow:
                return await _follow_live(client, receipt.submission_id)
            stream, text = await client.open_log(job), Text()
            try:
                while data := await stream.read():
                    printed += _print(text.feed(data))
                printed += _print(text.feed(b""))
            finally:
                stream.close()
    except CLUSTER_ERRORS as exc:
        return exc.message, printed
    return "", printed


async def _follow_live(client: JobsClient, submission_id: str) -> tuple[str, int]:
    from plugin_core.supervisor.job_log import JobLog

    log = JobLog(submission_id)
    try:
        while True:
            job = await client.job(submission_id)
            if job is None:
                return "its cluster no longer has the job", log.position
            async for piece in log.read(client, job, final=job.terminal):
                _print(piece)
            if job.terminal:
                return "", log.position
            sys.stdout.flush()
            await asyncio.sleep(EVERY_S)
    except CLUSTER_ERRORS as exc:
        return exc.message, log.position
    finally:
        log.close()


# ---- kept


def _print_kept(home: RunDir, attempt: int, why: str, printed: int, follow: bool) -> None:
    from plugin_core.runs.kept_log import DRIVER, KeptLog

    log = KeptLog(home, attempt, DRIVER, printed)
    if not (first := log.read()) and not printed and (not follow or _is_over(home, attempt)):
        raise SpecError(f"run: got {home.uri!r}, which keeps no log of attempt {attempt}; {why}")
    _say(f"the log of attempt {attempt}, as the run directory keeps it: {why}")
    _print(first)
    _print_on(log, home, attempt, follow)


def _print_rank(rundir: RunDir, home: RunDir, attempt: int, rank: int, follow: bool) -> None:
    from plugin_core.runs.kept_log import KeptLog, log_folder, rank_folder

    names = log_folder(rundir, attempt).names()
    ranks = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"rank-(\d+)", name)))
    if rank not in ranks and (not follow or _is_over(home, attempt)):
        kept = f"one of {', '.join(map(str, ranks))}" if ranks else "none: it keeps no log of a worker"
        raise SpecError(f"rank: got {rank}; expected, for attempt {attempt} of {rundir.uri}, {kept}")
    _say(f"the log of rank {rank} in attempt {attempt}, as the run directory keeps it")
    _print_on(KeptLog(rundir, attempt, rank_folder(rank)), home, attempt, follow)


def _print_on(log: KeptLog, home: RunDir, attempt: int, follow: bool) -> None:
    """Print a kept log to its end; with `follow`, until the attempt has ended and its processes have written the rest."""
    over_since: float | None = None
    while True:
        if text := log.read():
            _print(text)
            continue
        now = time.monotonic()
        if over_since is None and (not follow or _is_over(home, attempt)):
            over_since = now if follow else now - LAST_S
        if over_since is not None and now - over_since >= LAST_S:
            return
        sys.stdout.flush()
        time.sleep(EVERY_S)


def _is_over(home: RunDir, attempt: int) -> bool:
    return home.end(attempt) is not None or home.latest() > attempt


def _say(what: str) -> None:
    err.print(f"• {what}", markup=False, soft_wrap=True)


def _print(text: str) -> int:
    print(plain(text), end="")
    return len(text)
