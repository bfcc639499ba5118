"""`raytrain cluster …`, `raytrain doctor`, and the cluster options of other commands."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from plugin_core.cli.output import Json, answer, cell, console, err, print_json
from plugin_core.cli.places import Storage, complete_run, open_run
from plugin_core.clusters.base import Cluster, LocalCluster, RayCluster
from plugin_core.clusters.kuberay import KubeRayCluster
from plugin_core.errors import ClusterUnreachableError, SpecError

if TYPE_CHECKING:
    from plugin_core.clusters.local_head import Head

Address = Annotated[str | None, typer.Option(help="URL of a Ray dashboard (default: the embedded local cluster)")]
Token = Annotated[str | None, typer.Option(help="Ray auth token", envvar="RAY_AUTH_TOKEN", show_envvar=True)]

cluster_app = typer.Typer(help="The embedded local Ray cluster, and what is left on Kubernetes.", no_args_is_help=True)


def cluster_at(address: str | None, token: str | None) -> Cluster:
    return RayCluster(address, token) if address else LocalCluster()


def with_client(cluster: Cluster, ask: Callable[..., Any]) -> Any:
    async def work() -> Any:
        async with await cluster.connect() as client:
            return await ask(client)

    return asyncio.run(work())


def doctor(
    address: Address = None,
    token: Token = None,
    storage: Annotated[str | None, typer.Option(help="storage path or URI to probe")] = None,
    as_json: Json = False,
) -> None:
    """Check this environment, a storage and a cluster; report problems and exit 2 if there are any."""
    from plugin_core.clusters.doctor import checks

    found = list(checks(cluster_at(address, token), storage))
    if as_json:
        print_json([{"check": check.name, "good": check.good, "finding": check.finding} for check in found])
    else:
        table = Table("check", "", "finding")
        for check in found:
            table.add_row(check.name, "ok" if check.good else "[red]wrong[/red]", cell(check.finding))
        console().print(table)
    sys.exit(0 if all(check.good for check in found) else 2)


@cluster_app.command()
def start(
    num_cpus: Annotated[int | None, typer.Option(help="CPUs to advertise (default: number of cores, at least 4)")] = None,
    num_gpus: Annotated[int | None, typer.Option(help="GPUs to advertise (default: what Ray detects)")] = None,
    idle_timeout_s: Annotated[float, typer.Option(help="stop after this many seconds without a job")] = 300.0,
    preload: Annotated[bool, typer.Option(help="import torch, pandas and pyarrow once for all workers (Linux)")] = True,
    full_dashboard: Annotated[
        bool, typer.Option(help="include the pages for metrics, events, Ray Train, Ray Data and Serve")
    ] = False,
    as_json: Json = False,
) -> None:
    """Start the embedded cluster if it is not running, and print its address."""
    head = LocalCluster(num_cpus, num_gpus, idle_timeout_s, preload=preload, full_dashboard=full_dashboard).start()
    answer(_running(head), _facts(head), as_json)


@cluster_app.command()
def stop(as_json: Json = False) -> None:
    """Stop the embedded cluster and all its processes."""
    from plugin_core.clusters import local_head

    stopped = local_head.stop()
    answer("stopped" if stopped else "not running", {"stopped": stopped}, as_json)


@cluster_app.command()
def status(as_json: Json = False) -> None:
    """Show whether the embedded cluster is running, and its jobs."""
    from plugin_core.clusters import local_head

    head = local_head.current()
    if head is None:
        answer("not running", {"running": False}, as_json)
        return
    jobs = with_client(RayCluster(head.address, head.token), lambda client: client.jobs())
    told = [{"job": job.submission_id, "status": job.status, "run": (job.metadata or {}).get("run", "")} for job in jobs]
    if as_json:
        print_json({**_facts(head), "jobs": told})
        return
    print(_running(head))
    for job in told:
        print(cell(" ".join(job.values())).plain)


@cluster_app.command()
def url(as_json: Json = False) -> None:
    """Print the URL of the embedded cluster's dashboard."""
    head = _head()
    answer(head.address, {"url": head.address}, as_json)


@cluster_app.command()
def token(as_json: Json = False) -> None:
    """Print the embedded cluster's auth token, a secret: anyone who has it can run code here as you."""
    head = _head()
    answer(head.token, {"token": head.token}, as_json)


@cluster_app.command("open")
def open_dashboard(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="show this run's job", autocompletion=complete_run)
    ] = None,
    storage: Storage = None,
) -> None:
    """Open the embedded cluster's dashboard in a browser, logged in; prints its URL, for where there is no browser."""
    from plugin_core.cli.browser import open_logged_in
    from plugin_core.clusters import local_head

    head = _head()
    page = _job_page(head, run, storage) if run is not None else head.address
    print(page, flush=True)
    cookie = with_client(RayCluster(head.address, head.token), lambda client: client.browser_cookie())
    if not open_logged_in(page, cookie, local_head.state_dir()):
        err.print(
            "No browser came: open this URL in one on this machine; `raytrain cluster token` prints the token that the page"
            " asks for.",
            soft_wrap=True,
        )


@cluster_app.command()
def sweep(
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace")] = "default",
    kubeconfig: Annotated[str | None, typer.Option(help="default: the pod's service account, then the usual file")] = None,
    context: Annotated[str | None, typer.Option(help="context of the kubeconfig")] = None,
    address: Annotated[str, typer.Option(help="URL of a cluster, with {name} and {namespace}")] = KubeRayCluster.address,
    as_json: Json = False,
) -> None:
    """Delete the RayClusters that no run needs any more: kept ones whose time is over, and shared ones that everybody
    has left and on which no job lives. Each new run in the namespace does this too; the command is for a CronJob."""
    place = KubeRayCluster("sweep", namespace=namespace, kubeconfig=kubeconfig, context=context, address=address)
    deleted = asyncio.run(place.sweep())
    answer("\n".join(f"deleted {name}" for name in deleted) or "nothing to delete", {"deleted": deleted}, as_json)


def _job_page(head: Head, run: str, storage: str | None) -> str:
    rundir = open_run(run, storage)
    receipt = rundir.receipt(rundir.latest())
    if receipt is None or receipt.address != head.address:
        where = "no job yet" if receipt is None else "its job on another cluster, or on a head that is gone"
        raise SpecError(
            f"run: got {rundir.uri!r}, which has {where}; expected one whose job is on the running head"
            " (`raytrain logs RUN` shows the log of any)"
        )
    return receipt.job_url()


def _head() -> Head:
    from plugin_core.clusters import local_head

    head = local_head.current()
    if head is None:
        raise ClusterUnreachableError("cluster: no embedded head is running; `raytrain cluster start` starts one")
    return head


def _facts(head: Head) -> dict[str, Any]:
    return {"running": True, "address": head.address, "num_cpus": head.num_cpus, "keeper_pid": head.keeper_pid}


def _running(head: Head) -> str:
    return f"running at {head.address} with {head.num_cpus} CPUs (keeper {head.keeper_pid})"
