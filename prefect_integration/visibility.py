"""Show a step in Prefect: progress, links, metrics and report as artifacts, the checkpoint as an asset."""

from __future__ import annotations

import math
import re
from typing import Any

from prefect.artifacts import (
    Artifact,
    LinkArtifact,
    MarkdownArtifact,
    ProgressArtifact,
    TableArtifact,
    aupdate_progress_artifact,
)
from prefect.assets import Asset
from prefect.client.orchestration import PrefectClient, get_client
from prefect.context import AssetContext

from plugin_core.engine import (
    Event,
    History,
    Reading,
    RunDir,
    StepResult,
    StepSpec,
    Threads,
    how_to_open,
    markdown_report,
    markdown_text,
    metric_rows,
    safe_link,
    spec_datasets,
    trial_rows,
)

#: Type of the artifact that records a step's run and cluster; `hooks` reads it.
STEP = "ray-step"
#: The maximum number of metrics in an asset's event, which Prefect displays; the run directory has all of them.
_ASSET_METRICS = 20


class Board:
    """A step's artifacts. Their keys are `<flow>-<step's key>-…`, so that the Artifacts page shows each one's history.

    `dashboard_url`: Ray's dashboard as seen from a browser, if it differs from the flow's address.
    """

    def __init__(self, flow_name: str, key: str, rundir: RunDir, dashboard_url: str = ""):
        self._slug = re.sub(r"[^a-z0-9]+", "-", f"{flow_name} {key}".lower()).strip("-")
        self._rundir = rundir
        self._threads = Threads.of(rundir.uri)
        self._dashboard_url = dashboard_url
        self._reading = Reading()
        self._text = self._shown = ""
        self._progress_id: Any = None
        self._attempt = self._linked = 0
        self._trackers: dict[str, str] = {}
        self._trackers_shown: set[str] = set()

    def note(self, event: Event) -> None:
        """Record an event; `publish` sends it."""
        if event.kind == "report":
            self._reading, self._text = event.reading, markdown_text(event.text)
        if event.kind == "link":
            self._trackers |= event.data
        self._attempt = event.data.get("attempt", self._attempt)

    async def remember(self, cluster: dict[str, Any]) -> None:
        """Store the run's URI and cluster data, so that it can be cancelled without this process."""
        data = {"run": self._rundir.uri, "cluster": cluster}
        await Artifact(type=STEP, description="Where a Ray step of this flow run runs", data=data).acreate()

    async def publish(self, client: PrefectClient) -> None:
        """Send what is new."""
        if self._attempt != self._linked:
            receipt = await self._threads(self._rundir.receipt, self._attempt)
            if receipt is not None and (link := receipt.job_url(self._dashboard_url)):
                hint = how_to_open(receipt.cluster, self._rundir.uri)
                artifact = LinkArtifact(
                    key=f"{self._slug}-ray-job",
                    link=link,
                    link_text=markdown_text(receipt.submission_id),
                    description=f"The step's Ray job{hint and f'; {hint}'}",
                )
                await artifact.acreate(client)
            self._linked = self._attempt
        for tracker in self._trackers.keys() - self._trackers_shown:
            if link := safe_link(self._trackers[tracker]):
                key, text = f"{self._slug}-{tracker}", f"The step's run in {tracker}"
                await LinkArtifact(key=key, link=link, link_text=markdown_text(tracker), description=text).acreate(client)
            self._trackers_shown.add(tracker)
        if self._reading.fraction is not None and self._text != self._shown:
            await self._show_progress(client, 100 * self._reading.fraction)

    async def _show_progress(self, client: PrefectClient, percent: float) -> None:
        if self._progress_id is None:
            progress = ProgressArtifact(key=f"{self._slug}-progress", progress=percent, description=self._text)
            self._progress_id = (await progress.acreate(client)).id
        else:
            await aupdate_progress_artifact(self._progress_id, percent, self._text, client)
        self._shown = self._text

    async def finish(self, result: StepResult | None) -> None:
        """Publish the table of reports and a page with their plot. `result` is None if the step failed."""
        history = await self._threads(History.read, self._rundir, limit_s=math.inf)
        self._trackers |= result.tracking if result is not None else {}
        async with get_client() as client:
            await self.publish(client)
            if result is not None and self._progress_id is not None:
                await self._show_progress(client, 100.0)
            if history.reports:
                rows = metric_rows(history)
                await TableArtifact(key=f"{self._slug}-metrics", table=rows, description="The reports").acreate(client)
            if trials := await self._threads(trial_rows, self._rundir, result):
                await TableArtifact(key=f"{self._slug}-trials", table=trials, description="The trials").acreate(client)
            page = await self._threads(markdown_report, self._rundir, result, history)
            await MarkdownArtifact(key=f"{self._slug}-report", markdown=page, description="The run").acreate(client)


def show_asset(spec: StepSpec, result: StepResult) -> None:
    """Record the result's checkpoint (or predictions) as an asset of this task run, with its inputs."""
    context = AssetContext.get()
    if context is None or result.made is None:
        return
    asset = Asset(key=_asset_key(result.made))
    context.downstream_assets.add(asset)
    metrics = dict(list(result.metrics.items())[:_ASSET_METRICS])
    context.add_asset_metadata(asset.key, {"run": result.run.uri, "kind": result.kind, "metrics": metrics})
    context.direct_asset_dependencies |= {Asset(key=_asset_key(place)) for place in _read_places(spec)}
    context.update_tracked_assets()


def _read_places(spec: StepSpec) -> list[str]:
    places = [path for dataset in spec_datasets(spec).values() for path in _listed(dataset.path)]
    given = [getattr(spec, name, None) for name in ("checkpoint", "resume_from")]
    return places + [uri for reference in given if (uri := getattr(reference, "uri", None)) is not None]


def _listed(path: str | list[str] | None) -> list[str]:
    return path if isinstance(path, list) else [path] if path else []


def _asset_key(place: str) -> str:
    """Convert a path to a valid Prefect asset key: a URI without a query, few special characters, at most 512 long."""
    uri = place.partition("?")[0] if "://" in place else f"file://{place}"
    return re.sub(r"[\s#?&%\"'<>\[\]{}|\\^`]", "_", uri)[:512]
