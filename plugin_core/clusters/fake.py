"""A fake cluster, to test flows, DAGs and the supervisor without Ray.

`FakeCluster` serves the Jobs API over real HTTP. Instead of running a driver, it plays what the test specifies: succeed
with a given result, fail, or hang. Everything else (specs, run directory, receipts, decisions) is the real code.

    with FakeCluster(metrics={"accuracy": 0.97}) as cluster:
        result = run(spec, cluster)
"""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from plugin_core.clusters.base import OutlivesRuns
from plugin_core.clusters.jobs_api import TERMINAL, JobsClient
from plugin_core.errors import NO_RESOURCES, from_outcome
from plugin_core.runs.directory import AttemptEnd, Heartbeat, RunDir
from plugin_core.runs.finished_search import TABLE
from plugin_core.specs.results import RunRef, TuneResult
from plugin_core.specs.step_kinds import step_kind

Play = Literal["succeed", "linger", "user_error", "infrastructure", "vanish", "killed", "hang", "no_resources"]


@dataclass
class FakeCluster(OutlivesRuns):
    """A cluster whose jobs follow `plays` (one per attempt; the last repeats); a context manager.

    "vanish": the job fails without recording an end, as when Ray loses track of it; "killed": the same, but Ray knows
    its exit code; "linger": it writes its result but does not exit. `jobs` maps
    submission id to status, in order of submission; `token` is required in every request; `answering=False` makes the API
    return 500. `runtime_envs`: those of the submitted jobs; `packages`: the uploads, by name.
    """

    plays: list[Play] = field(default_factory=lambda: ["succeed"])
    name: str = "fake"
    metrics: dict[str, Any] = field(default_factory=dict)
    token: str | None = None
    num_cpus: float = 16.0
    num_gpus: float = 0.0
    autoscaling: bool = False
    shares_this_machine: bool = False
    session_name: str = "session_fake_1"
    ray_version: str = "2.60.0"
    answering: bool = True
    log: str = "a line of the fake job\n"
    env_vars: dict[str, str] = field(default_factory=dict)
    env_files: dict[str, str] = field(default_factory=dict)
    runtime_envs: list[dict[str, Any]] = field(default_factory=list)
    packages: dict[str, bytes] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    submits: int = 0

    def __enter__(self) -> FakeCluster:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True, name="fake-cluster")
        self._thread.start()
        self._ready.wait(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(timeout=30)

    async def connect(self) -> JobsClient:
        return JobsClient(self.address, self.token)

    @property
    def identity(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        return f"a {self.name} cluster"

    def driver_command(self) -> list[str]:
        return ["fake-driver"]

    # ---- the server

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._gate], client_max_size=100 * 2**20)  # like Ray's
        app.router.add_get("/api/version", self._version)
        app.router.add_post("/api/authenticate", self._authenticate)
        app.router.add_get("/api/v0/nodes", self._nodes)
        app.router.add_get("/api/v0/actors", self._actors)
        app.router.add_get("/api/packages/gcs/{name}", self._get_package)
        app.router.add_put("/api/packages/gcs/{name}", self._put_package)
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/", self._list)
        app.router.add_get("/api/jobs/{id}", self._get)
        app.router.add_get("/api/v0/logs/file", self._logs)
        app.router.add_post("/api/jobs/{id}/stop", self._stop)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.address = f"http://{host}:{port}"
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._done.wait()
        await runner.cleanup()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not self.answering:
            return web.Response(status=500, text="the fake does not answer")
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        response: web.StreamResponse = await handler(request)
        return response

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": self.ray_version, "session_name": self.session_name})

    async def _authenticate(self, request: web.Request) -> web.Response:
        response = web.json_response({"status": "authenticated"})
        response.set_cookie("ray-authentication-token", str(self.token), path="/", httponly=True, samesite="Strict")
        return response

    async def _nodes(self, request: web.Request) -> web.Response:
        node = {"state": "ALIVE", "resources_total": {"CPU": self.num_cpus, "GPU": self.num_gpus}}
        return web.json_response({"data": {"result": {"result": [node]}}})

    async def _actors(self, request: web.Request) -> web.Response:
        return web.json_response({"data": {"result": {"result": []}}})

    async def _get_package(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["name"] in self.packages else 404)

    async def _put_package(self, request: web.Request) -> web.Response:
        self.packages[request.match_info["name"]] = await request.read()
        return web.Response()

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        submission_id, (uri, attempt, _, _) = body["submission_id"], shlex.split(body["entrypoint"])[-4:]
        self.submits += 1
        self.runtime_envs.append(body["runtime_env"])
        if submission_id in self.jobs:
            return web.Response(status=500, text=f"Job with submission_id {submission_id} already exists.")
        self.jobs[submission_id] = "RUNNING"
        play = self.plays[min(len(self.jobs), len(self.plays)) - 1]
        if play == "killed":
            self.exit_codes[submission_id] = -signal.SIGKILL
        self.jobs[submission_id] = await asyncio.to_thread(self._play, play, RunDir.at(uri), int(attempt))
        return web.json_response({"submission_id": submission_id})

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response([{"submission_id": name, "status": status} for name, status in self.jobs.items()])

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if name not in self.jobs:
            return web.Response(status=404, text="no such job")
        job = {"submission_id": name, "status": self.jobs[name], "message": "as played", "driver_node_id": "fake"}
        return web.json_response({**job, "driver_exit_code": self.exit_codes.get(name)})

    async def _logs(self, request: web.Request) -> web.Response:
        lines, wanted = self.log.splitlines(keepends=True), int(request.query["lines"])
        return web.Response(text="".join(lines if wanted < 0 else lines[-wanted:]))

    async def _stop(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        if self.jobs.get(name, "STOPPED") not in TERMINAL:
            self.jobs[name] = "STOPPED"
        return web.json_response({"stopped": True})

    # ---- in place of the driver

    def _play(self, play: Play, rundir: RunDir, attempt: int) -> str:
        if play == "hang":
            rundir.beat(attempt, Heartbeat(1, "training"))
            return "RUNNING"
        if play in ("vanish", "killed"):
            rundir.beat(attempt, Heartbeat(1, "training"))
            return "FAILED"
        if play in ("succeed", "linger"):
            spec, run = rundir.read_spec(), RunRef(uri=rundir.uri, name=rundir.name, attempt=attempt)
            result = step_kind(spec.kind).result.played(spec, run, self.metrics)
            if isinstance(result, TuneResult):  # another search may continue from it
                trial = {**self.metrics, "run": "trial-fake", "status": "finished", "config": {}}
                rundir.location.child(TABLE).write(json.dumps([trial]).encode())
            rundir.write_result(result)
            rundir.record_end(attempt, AttemptEnd("succeeded"))
            return "SUCCEEDED" if play == "succeed" else "RUNNING"
        if play == "no_resources":
            rundir.record_end(attempt, AttemptEnd("timeout", "played: no resources", cause=NO_RESOURCES))
            return "FAILED"
        error = from_outcome(play, f"played: {play}", "Traceback (most recent call last): as played")
        rundir.record_end(attempt, AttemptEnd(play, error.message, error.details))
        return "FAILED"
