"""A small asynchronous client of Ray's Jobs API (REST, by aiohttp), with what a supervisor needs.

Vendor answers are translated here and nowhere else: no answer is ClusterUnreachableError, an answer that is not for us is
ClusterRefusedError. Ray's own client is synchronous and imports Ray; it serves only to upload local `runtime_env` folders.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugin_core.errors import ClusterRefusedError, ClusterUnreachableError, SpecError

if TYPE_CHECKING:
    import aiohttp

#: Seconds for one request, its connection included.
REQUEST_TIMEOUT_S = 15.0
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class JobInfo:
    """One job as the Jobs API sees it; `status` is Ray's word, `driver_id` Ray's id of its driver (a job in Ray's other
    sense)."""

    submission_id: str
    status: str
    message: str = ""
    error_type: str = ""
    exit_code: int | None = None
    metadata: dict[str, str] | None = None
    driver_id: str = ""

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL


class JobsClient:
    """Use as an async context manager. `address` is the dashboard's URL, `token` Ray's auth token."""

    def __init__(
        self, address: str, token: str | None = None, headers: dict[str, str] | None = None, verify: bool | str = True
    ):
        self.address = address.rstrip("/")
        self._token = token
        self._headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        self._verify = verify
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> JobsClient:
        import aiohttp  # a quarter of a second that whoever only parses a DAG or flow file need not pay

        secure: ssl.SSLContext | bool = True
        if self._verify is False:
            secure = False
        elif isinstance(self._verify, str):
            secure = await asyncio.to_thread(ssl.create_default_context, cafile=self._verify)
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
            connector=aiohttp.TCPConnector(ssl=secure),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session:
            await self._session.close()

    async def version(self) -> dict[str, str]:
        """`ray_version` and `session_name`, the incarnation of the head."""
        answer = await self._request("GET", "/api/version")
        if not isinstance(answer, dict) or "ray_version" not in answer:
            raise ClusterRefusedError(
                f"cluster: given {self.address}, which speaks no Ray Jobs API; accepted is the URL of a Ray dashboard"
            )
        return answer

    async def nodes(self) -> list[dict[str, Any]]:
        """The living nodes: `resources_total` is in Ray's units (memory in bytes)."""
        answer = await self._request("GET", "/api/v0/nodes?detail=1")
        nodes: list[dict[str, Any]] = answer["data"]["result"]["result"]
        return [node for node in nodes if node.get("state") == "ALIVE"]

    async def submit(
        self, submission_id: str, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str]
    ) -> None:
        """Submit a job; one of that id being there already is the same as success."""
        if any(_is_local_folder(item) for item in _folders(runtime_env)):
            runtime_env = await asyncio.to_thread(self._upload, runtime_env)
        body = {
            "entrypoint": entrypoint,
            "submission_id": submission_id,
            "runtime_env": runtime_env,
            "metadata": metadata,
        }
        try:
            await self._request("POST", "/api/jobs/", json=body)
        except ApiError as exc:
            # Ray answers a duplicate submission id with HTTP 500 and only this text
            if "already exists" in exc.text or "already been used" in exc.text:
                return
            if exc.status < 500:
                raise SpecError(f"runtime_env: the cluster refuses the job ({exc.text.strip()[-300:]})") from exc
            raise

    async def job(self, submission_id: str) -> JobInfo | None:
        """The job, or None where the cluster definitely has none of that id."""
        try:
            data = await self._request("GET", f"/api/jobs/{submission_id}")
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise
        return _job(data)

    async def jobs(self) -> list[JobInfo]:
        return [_job(data) for data in await self._request("GET", "/api/jobs/")]

    async def has_live_actors(self, job: JobInfo) -> bool:
        """Whether an actor of the job's driver still lives (detached ones, which Ray itself shares, apart); False for a job
        that never had a driver."""
        if not job.driver_id:
            return False
        query = {"job_id": ("=", job.driver_id), "state": ("!=", "DEAD")}
        params = [("limit", "1000"), ("detail", "1")]
        for key, (predicate, value) in query.items():
            params += [("filter_keys", key), ("filter_predicates", predicate), ("filter_values", value)]
        answer = await self._request("GET", "/api/v0/actors", params=params)
        return any(not actor.get("is_detached") for actor in answer["data"]["result"]["result"])

    async def stop(self, submission_id: str) -> None:
        """Ask a job to stop; a job that is over or unknown is fine."""
        try:
            await self._request("POST", f"/api/jobs/{submission_id}/stop")
        except ApiError as exc:
            if exc.status != 404:
                raise

    async def logs(self, submission_id: str) -> str:
        """The job's whole log so far, without colour codes."""
        try:
            answer = await self._request("GET", f"/api/jobs/{submission_id}/logs")
        except ApiError as exc:
            if exc.status in (400, 404):
                return ""
            raise
        return _ANSI.sub("", answer.get("logs") or "")

    async def _request(self, method: str, path: str, **kwargs: Any) -> Any:
        import aiohttp

        assert self._session is not None, "use `async with JobsClient(...)`"
        url = self.address + path
        try:
            async with self._session.request(method, url, allow_redirects=False, **kwargs) as response:
                if response.status in (401, 403):
                    raise ClusterRefusedError(
                        f"token: {self.address} answers {response.status} to "
                        + ("the token given" if self._token else "no token")
                        + "; accepted is the cluster's Ray auth token (RayCluster(token=…), RAY_AUTH_TOKEN, or --token)"
                    )
                if response.status >= 400:
                    raise ApiError(response.status, (await response.text())[:2000], url)
                if "json" not in response.content_type:
                    return await response.text()
                return await response.json()
        except (TimeoutError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as exc:
            reason = str(exc) or f"no answer within {REQUEST_TIMEOUT_S:.0f} s"
            raise ClusterUnreachableError(
                f"cluster: given {self.address}, which cannot be reached ({reason}); accepted is the URL of a running Ray"
                " dashboard"
            ) from exc
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, aiohttp.http.HttpProcessingError) as exc:
            raise ClusterRefusedError(f"cluster: given {self.address!r}; accepted is a URL like http://host:8265") from exc
        except aiohttp.ClientError as exc:
            raise ClusterUnreachableError(f"cluster: {self.address} gave no proper answer ({exc})") from exc

    def _upload(self, runtime_env: dict[str, Any]) -> dict[str, Any]:
        from ray.dashboard.modules.dashboard_sdk import SubmissionClient

        client = SubmissionClient(self.address, headers=self._headers, verify=self._verify, create_cluster_if_needed=False)
        runtime_env = dict(runtime_env)
        try:
            client._upload_working_dir_if_needed(runtime_env)
            client._upload_py_modules_if_needed(runtime_env)
        except (ValueError, OSError) as exc:
            raise SpecError(f"runtime_env: given {runtime_env!r}; its folders cannot be uploaded ({exc})") from exc
        return runtime_env


class ApiError(ClusterUnreachableError):
    """An HTTP error of the API. A 5xx says nothing about the job, so it counts as unreachable."""

    def __init__(self, status: int, text: str, url: str):
        super().__init__(f"cluster: {url} answers {status}: {text.strip().splitlines()[-1][:200] if text.strip() else ''}")
        self.status = status
        self.text = text


def _job(data: dict[str, Any]) -> JobInfo:
    return JobInfo(
        submission_id=data.get("submission_id") or "",
        status=data["status"],
        message=data.get("message") or "",
        error_type=data.get("error_type") or "",
        exit_code=data.get("driver_exit_code"),
        metadata=data.get("metadata") or {},
        driver_id=data.get("job_id") or (data.get("driver_info") or {}).get("id") or "",
    )


def _folders(runtime_env: dict[str, Any]) -> list[str]:
    return [runtime_env.get("working_dir") or "", *(runtime_env.get("py_modules") or [])]


def _is_local_folder(item: str) -> bool:
    return bool(item) and "://" not in item
