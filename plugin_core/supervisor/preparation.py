"""Checks a step and creates its run directory before anything is submitted."""

from __future__ import annotations

import math

from plugin_core.clusters import handover
from plugin_core.clusters.base import Cluster
from plugin_core.errors import ClusterQueuedError, SpecError, StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import StepSpec
from plugin_core.specs.ray_versions import check_ray
from plugin_core.specs.resources import check_fits
from plugin_core.specs.working_folders import check_folders
from plugin_core.storage.location import default_storage_path
from plugin_core.storage.refusals import refusal
from plugin_core.storage.threads import Threads, in_thread
from plugin_core.supervisor.events import Event, Listener, Log
from plugin_core.supervisor.generations import lay_down
from plugin_core.supervisor.preflight import check_functions_and_data
from plugin_core.supervisor.run_checkpoints import with_checkpoints
from plugin_core.supervisor.story import Story
from plugin_core.supervisor.uploads import tell_if_slow
from plugin_core.supervisor.where import release, tell_start


async def prepare(
    spec: StepSpec,
    cluster: Cluster,
    request: str | None = None,
    log: Log | None = None,
    current: RunDir | None = None,
) -> RunDir:
    """Check the step and create its run directory; submits nothing. Raises SpecError and its subclasses.

    `request`: the engine's id of the request, for tasks that a person may run again (see `generations`). `log`: gets the
    lines for people. `current`: the newest generation, if the caller has looked it up.
    """
    tell: Listener = Story(log) if log is not None else lambda event: None
    for each in cluster.choices():
        handover.check(each)
    await in_thread(check_folders, spec.runtime_env)
    # no time limit: a journal may have to be read
    spec, remarks = await Threads.of(RunDir.of(spec).uri)(
        with_checkpoints, spec, cluster.shares_this_machine, current, limit_s=math.inf
    )
    await in_thread(check_functions_and_data, spec, cluster.shares_this_machine, current)
    try:
        # no time limit: the payload that travels with the step may be large
        laying = Threads.of(RunDir.of(spec).uri)
        written = laying(lay_down, spec, request, current, limit_s=math.inf)
        rundir, remark = await tell_if_slow(written, "the step to its run directory", tell)
    except StorageError as exc:
        if why := refusal(exc):
            given = spec.run_config.storage_path or default_storage_path()
            raise SpecError(
                f"run_config.storage_path: got {given!r}, {why}; expected storage that this process may write"
            ) from exc
        raise
    cluster = cluster.of_run(rundir.uri)
    tell(Event("state", f"{spec.kind.replace('_', ' ')} {rundir.name} on {cluster.title}; run directory: {rundir.uri}"))
    for line in filter(None, [*remarks, remark]):
        tell(Event("state", line))
    # a run with an attempt is left to the loop, which waits for a cluster that is unreachable now; so is the choice among
    # several clusters
    threads = Threads.of(rundir.uri)
    if len(cluster.choices()) == 1 and not await threads(rundir.receipts) and await threads(rundir.result) is None:
        try:
            await tell_start(cluster, tell)
            async with await cluster.connect() as client:
                check_ray(spec, (await client.version())["ray_version"])
                if not cluster.autoscaling:
                    check_fits(spec, await client.nodes())
        except ClusterQueuedError as exc:
            tell(Event("state", exc.message))  # whoever follows the run waits for it
        except SpecError:
            await release(cluster, False, tell)  # nothing will ever run there
            raise
    return rundir
