"""Checks a step and creates its run directory before anything is submitted."""

from __future__ import annotations

import math

from plugin_core.clusters import handover
from plugin_core.clusters.base import Cluster
from plugin_core.clusters.working_folders import check_folders
from plugin_core.errors import RayTrainWorkflowsError, SpecError, StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import StepSpec
from plugin_core.specs.resources import check_fits
from plugin_core.storage.location import default_storage_path
from plugin_core.storage.refusals import refusal
from plugin_core.storage.threads import Threads, in_thread
from plugin_core.supervisor.follower import Event, Listener
from plugin_core.supervisor.generations import lay_down
from plugin_core.supervisor.preflight import check_functions_and_data
from plugin_core.supervisor.run_checkpoints import with_checkpoints


async def prepare(
    spec: StepSpec,
    cluster: Cluster,
    request: str | None = None,
    listener: Listener | None = None,
    current: RunDir | None = None,
) -> RunDir:
    """Check the step and create its run directory; submits nothing. Raises SpecError and its subclasses.

    `request`: the engine's id of the request, for tasks that a person may run again (see `generations`). `current`: the
    newest generation, if the caller has looked it up.
    """
    handover.check(cluster)
    await in_thread(check_folders, spec.runtime_env)
    # no time limit: a journal may have to be read
    spec, remarks = await Threads.of(RunDir.of(spec).uri)(
        with_checkpoints, spec, cluster.shares_this_machine, current, limit_s=math.inf
    )
    await in_thread(check_functions_and_data, spec, cluster.shares_this_machine)
    try:
        # no time limit: the payload that travels with the step may be large
        laying = Threads.of(RunDir.of(spec).uri)
        rundir, remark = await laying(lay_down, spec, request, current, limit_s=math.inf)
    except StorageError as exc:
        if why := refusal(exc):
            given = spec.run_config.storage_path or default_storage_path()
            raise SpecError(
                f"run_config.storage_path: got {given!r}, {why}; expected storage that this process may write"
            ) from exc
        raise
    cluster = cluster.of_run(rundir.uri)
    if listener is not None:
        for line in filter(None, [*remarks, remark]):
            listener(Event("state", line))
    # a run with an attempt is left to the loop, which waits for a cluster that is unreachable now
    threads = Threads.of(rundir.uri)
    if not await threads(rundir.receipts) and await threads(rundir.result) is None:
        try:
            async with await cluster.connect() as client:
                await client.version()
                if not cluster.autoscaling:
                    check_fits(spec, await client.nodes())
        except SpecError:
            await release(cluster, False, listener)  # nothing will ever run there
            raise
    return rundir


async def release(cluster: Cluster, succeeded: bool, listener: Listener | None) -> None:
    """Release a run's cluster. Never raises: a failure is reported to the listener."""
    try:
        await cluster.release(succeeded)
    except RayTrainWorkflowsError as exc:
        # the run is over either way, but the user must know about a per-run cluster that is left over
        if listener is not None:
            listener(Event("state", f"the run's cluster could not be released: {exc.message}"))
