"""A fake Kubernetes with KubeRay's operator: the few requests that a RayCluster needs, over HTTP, with the API server's
answers. No Kubernetes runs in the tests, so they show nothing about what a real one does beyond this."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from pathlib import Path
from typing import Any, Self

import yaml
from aiohttp import web

CLUSTERS = "/apis/ray.io/v1/namespaces/{namespace}/rayclusters"


class FakeKubernetes:
    """A context manager. `ready_after`: number of reads of a cluster until its head is ready; None: never. `token`:
    what the operator puts into a cluster's Secret. `forbidden`: methods ("POST") that are answered with 403.
    `knows_kuberay=False`: there is no such kind of resource. `admits_after`: number of reads of a queued cluster until
    Kueue admits it; None: never. `ahead`: its place in the queue; None: there is no such API. `waiting`: why the
    head's container does not start; `head_log`: what it wrote. `secret`: a Secret's data in place of the token's."""

    def __init__(self, folder: Path, token: str = "secret"):
        self._folder, self.token = folder, token
        self.ready_after: int | None = 2
        self.forbidden: set[str] = set()
        self.knows_kuberay = True
        self.admits_after: int | None = 3
        self.ahead: int | None = 2
        self.waiting: str | None = None
        self.head_log = ""
        self.secret: dict[str, str] | None = None
        self.clusters: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self._looks: dict[str, int] = {}
        self._version = 0

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True, name="fake-kubernetes")
        self._thread.start()
        assert ready.wait(30)
        self.kubeconfig = self._folder / "kubeconfig"
        context = {"cluster": "fake", "user": "fake"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "fake", "user": {"token": "of the user"}}],
            "contexts": [{"name": "fake", "context": context}],
            "current-context": "fake",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(30)

    def methods(self) -> list[str]:
        """The requests that were not reads."""
        return [method for method, _ in self.requests if method != "GET"]

    async def _serve(self, ready: threading.Event) -> None:
        app = web.Application(middlewares=[self._gate])
        app.router.add_get(CLUSTERS, self._list)
        app.router.add_post(CLUSTERS, self._create)
        app.router.add_get(CLUSTERS + "/{name}", self._get)
        app.router.add_put(CLUSTERS + "/{name}", self._replace)
        app.router.add_delete(CLUSTERS + "/{name}", self._delete)
        visibility = "/apis/visibility.kueue.x-k8s.io/v1beta1/namespaces/{namespace}/localqueues/{queue}/pendingworkloads"
        app.router.add_get(visibility, self._pending)
        app.router.add_get("/api/v1/namespaces/{namespace}/secrets/{name}", self._secret)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", self._pods)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/log", self._log)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await self._done.wait()
        await runner.cleanup()

    @web.middleware
    async def _gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if request.method in self.forbidden:
            return _refuse(403, f'User "fake" cannot {request.method.lower()} resource "rayclusters" in API group "ray.io"')
        if not self.knows_kuberay and request.path.startswith("/apis/ray.io"):
            return _refuse(404, "the server could not find the requested resource")
        answer: web.StreamResponse = await handler(request)
        return answer

    def _changed(self, cluster: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        cluster["metadata"]["resourceVersion"] = str(self._version)
        return cluster

    async def _list(self, request: web.Request) -> web.Response:
        key, value = request.query["labelSelector"].split("=")
        items = [each for each in self.clusters.values() if each["metadata"].get("labels", {}).get(key) == value]
        return web.json_response({"items": items})

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["metadata"]["name"]
        if name in self.clusters:
            return _refuse(409, f'rayclusters.ray.io "{name}" already exists')
        if "headGroupSpec" not in body["spec"]:
            return _refuse(422, f'RayCluster.ray.io "{name}" is invalid: spec.headGroupSpec: Required value')
        self.clusters[name] = self._changed(body)
        self._looks[name] = 0
        return web.json_response(body, status=201)

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        found = self.clusters.get(name)
        if found is None:
            return _refuse(404, f'rayclusters.ray.io "{name}" not found')
        self._looks[name] += 1
        if found["spec"].get("suspend") and self.admits_after is not None and self._looks[name] > self.admits_after:
            found["spec"]["suspend"] = False
            self._changed(found)
        answer = json.loads(json.dumps(found))
        if found["spec"].get("suspend") and "deletionTimestamp" not in found["metadata"]:
            answer["status"] = {"state": "suspended"}
        elif "deletionTimestamp" in found["metadata"]:
            del self.clusters[name]  # its pods are gone by the next read
        elif self.ready_after is not None and self._looks[name] >= self.ready_after:
            answer["status"] = {"state": "ready", "conditions": [{"type": "HeadPodReady", "status": "True"}]}
        else:
            condition = {"type": "HeadPodReady", "status": "False", "reason": "ContainersNotReady"}
            answer["status"] = {"conditions": [condition]}
        return web.json_response(answer)

    async def _pending(self, request: web.Request) -> web.Response:
        if self.ahead is None:
            return _refuse(404, "the server could not find the requested resource")
        queue = request.match_info["queue"]
        items = [
            {"metadata": {"ownerReferences": [{"kind": "RayCluster", "name": name}]}, "positionInLocalQueue": self.ahead}
            for name, each in self.clusters.items()
            if each["spec"].get("suspend") and each["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == queue
        ]
        return web.json_response({"items": items})

    async def _replace(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.json()
        if name not in self.clusters:
            return _refuse(404, "not found")
        if body["metadata"]["resourceVersion"] != self.clusters[name]["metadata"]["resourceVersion"]:
            return _refuse(409, "the object has been modified; please apply your changes to the latest version")
        self.clusters[name] = self._changed({key: value for key, value in body.items() if key != "status"})
        return web.json_response(self.clusters[name])

    async def _delete(self, request: web.Request) -> web.Response:
        found = self.clusters.get(request.match_info["name"])
        if found is None:
            return _refuse(404, "not found")
        options = await request.json()
        wanted = (options.get("preconditions") or {}).get("resourceVersion")
        if wanted is not None and wanted != found["metadata"]["resourceVersion"]:
            return _refuse(409, "the object has been modified")
        assert options["propagationPolicy"] == "Foreground"
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return web.json_response(self._changed(found))

    async def _secret(self, request: web.Request) -> web.Response:
        if request.match_info["name"] not in self.clusters:
            return _refuse(404, f'secrets "{request.match_info["name"]}" not found')
        token = {"auth_token": base64.b64encode(self.token.encode()).decode()}
        return web.json_response({"data": token if self.secret is None else self.secret})

    async def _pods(self, request: web.Request) -> web.Response:
        labels = dict(each.split("=") for each in request.query["labelSelector"].split(","))
        name = labels["ray.io/cluster"]
        if name not in self.clusters or labels["ray.io/node-type"] != "head":
            return web.json_response({"items": []})
        state = {"waiting": {"reason": self.waiting, "message": "it does not start"}} if self.waiting else {"running": {}}
        container = {"name": "ray-head", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        pod = {"metadata": {"name": f"{name}-head"}, "status": {"phase": "Pending", "containerStatuses": [container]}}
        return web.json_response({"items": [pod]})

    async def _log(self, request: web.Request) -> web.Response:
        if self.waiting:
            return _refuse(400, f'container "ray-head" in pod "{request.match_info["name"]}" is waiting to start')
        return web.Response(text=self.head_log)


def _refuse(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "status": "Failure", "message": message, "code": status}, status=status)
