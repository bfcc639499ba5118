"""Claims attempts of a run, submits their jobs, and stops them. Decisions made elsewhere are carried out here, once."""

from __future__ import annotations

import shlex
import time
from collections.abc import Awaitable, Callable
from typing import Any

from plugin_core.clusters import handover
from plugin_core.clusters.jobs_api import ApiError, JobsClient
from plugin_core.clusters.secrets import RENEW_S
from plugin_core.driver.admission import AUTOSCALING
from plugin_core.driver.resources import MOVES_ON
from plugin_core.errors import (
    CLUSTER_ERRORS,
    REFUSED,
    ClusterQueuedError,
    ClusterRefusedError,
    ClusterUnreachableError,
    InfeasibleError,
    InfrastructureError,
    SpecError,
)
from plugin_core.runs.code import VARIABLE as CODE_VARIABLE
from plugin_core.runs.code import digests
from plugin_core.runs.directory import AttemptEnd, Receipt, RunDir
from plugin_core.specs import StepSpec
from plugin_core.specs.ray_versions import check_ray
from plugin_core.specs.resources import check_fits
from plugin_core.specs.sources import git_commit
from plugin_core.specs.working_folders import with_package
from plugin_core.storage.threads import Threads, in_thread
from plugin_core.storage.uris import allowed_here
from plugin_core.supervisor.events import Event, Listener
from plugin_core.supervisor.interest import Interest
from plugin_core.supervisor.uploads import tell_if_slow
from plugin_core.supervisor.where import Where, tell_start

#: Give up after the API has answered this many submits in a row with an error.
SUBMIT_ERRORS = 10
#: Environment variables of every job; the cluster and the spec override them. Ray Data draws progress bars for a terminal,
#: and in a task's log each redraw is a line (four of five lines, measured). The step reports its own progress.
JOB_VARIABLES = {"RAY_DATA_DISABLE_PROGRESS_BARS": "1"}


class Submitter:
    """`metadata`: the engine's, for each job."""

    def __init__(self, rundir: RunDir, where: Where, interest: Interest, tell: Listener, metadata: dict[str, str]):
        self.rundir, self._where, self._interest, self._tell = rundir, where, interest, tell
        self._metadata = metadata
        self._threads = Threads.of(rundir.uri)
        self._submit_errors = 0
        self._handover_due = 0.0

    async def begin(self, attempt: int, gave_up_on_cluster: bool, called_off: Callable[[], Awaitable[bool]]) -> int | None:
        """Claim this attempt and start its job; returns its number, or None if it was not claimed. Raises what ends the
        run. `called_off`: whether nobody wants it any more; the next look says what follows."""
        if await self._threads(self.rundir.latest) >= attempt:
            return None  # another process was faster; the next look finds its attempt
        spec = await self._threads(self.rundir.read_spec)
        if (reached := await self._reach(attempt, spec, gave_up_on_cluster)) is None:
            return None
        client, incarnation = reached
        try:
            # before the claim: a failed upload must not leave an attempt behind
            sending = client.upload(self._runtime_env(spec))
            uploaded = await tell_if_slow(sending, "the code to the cluster", self._tell, lambda: client.uploaded)
        except ClusterUnreachableError as exc:
            self._not_submitted(f"attempt {attempt} is waiting for its upload", exc)
            return None
        if await called_off():  # reaching the cluster and the upload take long
            return None
        claim, cluster = self.rundir.claim, self._where.cluster.identity
        receipt = await self._threads(claim, attempt, client.address, incarnation, cluster)
        if receipt is None:
            return None
        # asked again: whoever ends this call after the claim sees the attempt, and cancels it as well
        if await called_off():
            await self._threads(self.rundir.cancel, attempt)
        else:
            await self.start_job(receipt, spec.model_copy(update={"runtime_env": uploaded}))
        return attempt

    async def _reach(self, attempt: int, spec: StepSpec, gave_up_on_cluster: bool) -> tuple[JobsClient, str] | None:
        """Connect to the first of the run's clusters that accepts it: its client and head's session. None: wait."""
        where = self._where
        await where.find_next()
        while True:
            try:
                if where.client is None and not self._interest.waits_for:
                    await tell_start(where.cluster, self._tell)
                client = await where.begin()
                version = await client.version()
                check_ray(spec, version["ray_version"])
                incarnation = version.get("session_name", "")
                if where.is_choice and not where.cluster.autoscaling:
                    check_fits(spec, await client.nodes())
                self._interest.waits_for = ""
                return client, incarnation
            except ClusterQueuedError as exc:
                self._interest.waits(exc.message)
                return None
            except InfeasibleError as exc:
                if not await where.move_on(exc.message, self._tell):
                    await where.release(False, self._tell)  # nothing will ever run there
                    raise
            except CLUSTER_ERRORS as exc:
                refused = attempt == 1 and isinstance(exc, ClusterRefusedError)  # by a wrong token, say
                if not refused and await where.move_on(exc.message, self._tell):
                    self._interest.waits_for = ""
                    continue
                if attempt == 1 or gave_up_on_cluster:
                    raise  # nothing was started: the engine may retry, also on another cluster
                self._tell(Event("state", f"attempt {attempt} is waiting for the cluster: {exc.message}"))
                await where.close()
                return None

    async def start_job(self, receipt: Receipt, spec: StepSpec | None = None) -> None:
        """`spec`: the run's spec with its folders uploaded, right after the claim; None if it may be submitted already."""
        first_time = spec is not None
        if spec is None:
            spec = await self._threads(self.rundir.read_spec)
            spec = spec.model_copy(update={"runtime_env": self._runtime_env(spec)})
        own = {"run": self.rundir.uri, "name": self.rundir.name, "attempt": str(receipt.attempt)}
        commit = await in_thread(git_commit) if spec.tracking else {}
        metadata = {**self._metadata, **commit, **own}
        try:
            client = await self._where.connect()
            code, lasting = await self._threads(digests, self.rundir)
            # Ray passes the entrypoint to a shell. `exec`: the process that Ray sees end, with its exit code, is the driver
            words = [
                "exec",
                *self._where.cluster.driver_command(),
                self.rundir.uri,
                str(receipt.attempt),
                receipt.nonce,
                code,
            ]
            handed = await self._hand_over(client, receipt, spec)
            growing = {AUTOSCALING: "1"} if self._where.cluster.autoscaling else {}
            patience = {} if self._where.patience_s is None else {MOVES_ON: f"{self._where.patience_s:g}"}
            variables = {**JOB_VARIABLES, **growing, **patience, CODE_VARIABLE: lasting, **allowed_here(), **handed}
            runtime_env = spec.with_runtime_env({"env_vars": variables}).runtime_env
            await client.submit(receipt.submission_id, shlex.join(words), await client.upload(runtime_env), metadata)
        except ClusterUnreachableError as exc:
            # whether it arrived is unknown; the next look checks, and the same id cannot become two jobs
            self._not_submitted(f"no answer to the submit of {receipt.submission_id}", exc)
        except SpecError as exc:
            if first_time:  # so this attempt will never have a job
                await self._threads(self.rundir.record_end, receipt.attempt, AttemptEnd(REFUSED, exc.message))
            raise
        else:
            from plugin_core.clusters import local_head

            self._submit_errors = 0
            told = {"submission_id": receipt.submission_id, "attempt": receipt.attempt}
            page = local_head.how_to_open(receipt.cluster, self.rundir.uri)
            said = f"attempt {receipt.attempt} is job {receipt.submission_id}{page and f'; {page}'}"
            self._tell(Event("state", said, told))

    def _runtime_env(self, spec: StepSpec) -> dict[str, Any]:
        return with_package(spec.runtime_env) if self._where.cluster.ship_package else spec.runtime_env

    async def _hand_over(self, client: JobsClient, receipt: Receipt, spec: StepSpec) -> dict[str, str]:
        self._handover_due = time.monotonic() + RENEW_S
        own = spec.runtime_env.get("env_vars", {})  # the spec wins
        return await handover.hand_over(client, self._where.cluster, receipt.submission_id, without=own)

    async def keep_handed_over(self, receipt: Receipt) -> None:
        """Renew the variables of a pending job, which has not taken them yet; Ray keeps them for only a few minutes.
        Does so only once in a while."""
        if time.monotonic() <= self._handover_due:
            return
        try:
            client = await self._where.connect()
            await self._hand_over(client, receipt, await self._threads(self.rundir.read_spec))
        except CLUSTER_ERRORS as exc:
            self._tell(Event("state", f"could not renew the variables of {receipt.submission_id}: {exc.message}"))

    def _not_submitted(self, what: str, exc: ClusterUnreachableError) -> None:
        self._tell(Event("state", f"{what}: {exc.message}"))
        self._submit_errors += isinstance(exc, ApiError)
        if self._submit_errors >= SUBMIT_ERRORS:
            raise InfrastructureError(f"the cluster answers, but accepts no job: {exc.message}") from exc

    async def stop_job(self, receipt: Receipt) -> None:
        try:
            await (await self._where.connect()).stop(receipt.submission_id)
        except CLUSTER_ERRORS as exc:
            self._tell(Event("state", f"no answer to the stop of {receipt.submission_id}: {exc.message}"))
