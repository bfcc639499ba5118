"""A small asynchronous client for Ray's Jobs API (REST, through aiohttp), with what a supervisor needs.

Ray's responses are translated only here: a missing response, or one that is not Ray's, raises ClusterUnreachableError, a
rejection ClusterRefusedError. Ray's own client is synchronous and imports Ray; it is used only to upload local
`runtime_env` folders.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from plugin_core.clusters.job_info import TERMINAL as TERMINAL
from plugin_core.clusters.job_info import JobInfo as JobInfo
from plugin_core.clusters.job_info import job_of
from plugin_core.errors import ClusterRefusedError, ClusterUnreachableError, SpecError
from plugin_core.ray_internals.upload import upload_folders
from plugin_core.specs.working_folders import local_folders

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
#: Seconds for one request including the connection; for a log stream, until the next bytes.
REQUEST_TIMEOUT_S = 15.0
#: Seconds after which the cluster ends a log stream.
LOG_TIMEOUT_S = 3600


class JobsClient:
    """Use as an async context manager. `address` is the dashboard's URL, `token` Ray's auth token; `verify` and `cert` as
    in `RayCluster`."""

    def __init__(
        self,
        address: str,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        verify: bool | str = True,
        cert: str | None = None,
    ):
        self.address = address.rstrip("/")
        _check_header("token", token or "")
        for name, value in (headers or {}).items():
            _check_header(f"headers.{name}", name + value)
        self._token = token
        self._headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        self._verify, self._cert = verify, cert
        self._session: aiohttp.ClientSession | None = None
        #: bytes of local folders that `upload` sent
        self.uploaded = 0

    async def __aenter__(self) -> JobsClient:
        import aiohttp  # takes 0.25 s, which merely parsing a DAG or flow file should not cost

        plain = self._cert is None and isinstance(self._verify, bool)
        secure = self._verify is True if plain else await asyncio.to_thread(_context, self._verify, self._cert)
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
        """`ray_version` and `session_name`, which identifies the head's incarnation."""
        try:
            return await self._get("/api/version", lambda data: {**data, "ray_version": data["ray_version"]})
        except OtherAnswerError as exc:
            raise ClusterRefusedError(
                f"cluster: got {self.address}, which has no Ray Jobs API; expected the URL of a Ray dashboard"
            ) from exc

    async def nodes(self) -> list[dict[str, Any]]:
        """The live nodes; `resources_total` is in Ray's units (memory in bytes)."""
        nodes = await self._get("/api/v0/nodes?detail=1", _listed)
        return [node for node in nodes if node.get("state") == "ALIVE"]

    async def submit(
        self, submission_id: str, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str]
    ) -> None:
        """Submit a job; succeeds if a job with that id already exists. See `upload` for `runtime_env`."""
        body = {
            "entrypoint": entrypoint,
            "submission_id": submission_id,
            "runtime_env": runtime_env,
            "metadata": metadata,
        }
        try:
            await self._request("POST", "/api/jobs/", json=body)
        except ApiError as exc:
            # Ray reports a duplicate submission id as HTTP 500 with only this text
            if "already exists" in exc.text or "already been used" in exc.text:
                return
            if exc.status < 500:
                raise SpecError(f"runtime_env: the cluster rejects the job ({exc.text.strip()[-300:]})") from exc
            raise

    async def upload(self, runtime_env: dict[str, Any]) -> dict[str, Any]:
        """Upload a `runtime_env`'s local folders, unless already uploaded; returns it with their URIs.

        Raises SpecError if a folder cannot be packed, one of CLUSTER_ERRORS if the cluster rejects the upload.
        """
        return await asyncio.to_thread(self._upload, runtime_env) if local_folders(runtime_env) else runtime_env

    async def hand_over(self, name: str, data: bytes) -> None:
        """Store bytes on the cluster's head under a name (see `handover`). Repeating the call renews Ray's retention."""
        path = f"/api/packages/gcs/{name}"
        try:
            # the GET makes Ray schedule the deletion of whatever is stored under the name at that point
            await self._request("GET", path)
        except ApiError as exc:
            if exc.status != 404:
                raise
            await self._request("PUT", path, data=data)

    async def browser_cookie(self) -> str:
        """The `Set-Cookie` header that lets a browser into Ray's dashboard. As secret as the token, which it
        contains."""
        with self._our_errors():
            async with self._opened.post(f"{self.address}/api/authenticate", allow_redirects=False) as response:
                await self._check(response)
                return response.headers["Set-Cookie"]

    async def job(self, submission_id: str) -> JobInfo | None:
        """The job, or None if the cluster definitely has no job with that id."""
        try:
            return await self._get(f"/api/jobs/{quote(submission_id, safe='')}", job_of)
        except ApiError as exc:
            if exc.status == 404:
                return None
            raise

    async def jobs(self) -> list[JobInfo]:
        return await self._get("/api/jobs/", lambda data: [job_of(each) for each in data])

    async def has_live_actors(self, job: JobInfo) -> bool:
        """Whether any actor of the job's driver is alive. Detached actors do not count: Ray itself shares them. False
        for a job that never had a driver."""
        if not job.driver_id:
            return False
        query = {"job_id": ("=", job.driver_id), "state": ("!=", "DEAD")}
        params = [("limit", "1000"), ("detail", "1")]
        for key, (predicate, value) in query.items():
            params += [("filter_keys", key), ("filter_predicates", predicate), ("filter_values", value)]
        return any(not actor.get("is_detached") for actor in await self._get("/api/v0/actors", _listed, params=params))

    async def stop(self, submission_id: str) -> None:
        """Ask a job to stop; a no-op if it has ended or is unknown."""
        try:
            await self._request("POST", f"/api/jobs/{quote(submission_id, safe='')}/stop")
        except ApiError as exc:
            if exc.status != 404:
                raise

    async def open_log(self, job: JobInfo, lines: int = -1) -> LogStream:
        """The job's log so far, or its last lines, as a byte stream that the caller closes.

        Raises one of CLUSTER_ERRORS, also if there is no log yet.
        """
        import aiohttp

        # by file name: given a submission id, Ray 2.60 reads the records of all jobs
        file = {"node_id": job.node_id, "filename": f"job-driver-{job.submission_id}.log"}
        query = {**file, "lines": str(lines), "timeout": str(LOG_TIMEOUT_S)}
        patience = aiohttp.ClientTimeout(connect=REQUEST_TIMEOUT_S, sock_read=REQUEST_TIMEOUT_S)
        url = f"{self.address}/api/v0/logs/file"
        with self._our_errors():
            response = await self._opened.get(url, params=query, allow_redirects=False, timeout=patience)
            try:
                await self._check(response)
            except BaseException:
                response.close()
                raise
        return LogStream(response, self._our_errors)

    @property
    def _opened(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use `async with JobsClient(...)`"
        return self._session

    async def _request(self, method: str, path: str, **kwargs: Any) -> Any:
        with self._our_errors():
            async with self._opened.request(method, self.address + path, allow_redirects=False, **kwargs) as response:
                await self._check(response)
                if "json" not in response.content_type:
                    return await response.read()
                try:
                    return await response.json()
                except ValueError as exc:
                    raise OtherAnswerError(self.address, "JSON that cannot be read") from exc

    async def _get(self, path: str, read: Callable[[Any], T], **kwargs: Any) -> T:
        """What `read` makes of the JSON there."""
        data = await self._request("GET", path, **kwargs)
        try:
            return read(data)
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            raise OtherAnswerError(self.address, "not the expected data") from exc

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status in (401, 403):
            raise ClusterRefusedError(
                f"token: {self.address} returned {response.status} for "
                + ("the given token" if self._token else "a request without a token")
                + "; expected the cluster's Ray auth token (RayCluster(token=…), RAY_AUTH_TOKEN, or --token)"
            )
        if response.status >= 400:
            path = response.url.path
            raise ApiError(response.status, (await response.text(errors="replace"))[:2000], self.address + path)
        if response.status >= 300:
            raise OtherAnswerError(self.address, f"a redirect ({response.status})")
        if response.content_type == "text/html":
            raise OtherAnswerError(self.address, "an HTML page")

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        import aiohttp

        try:
            yield
        except (TimeoutError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as exc:
            reason = str(exc) or f"no response within {REQUEST_TIMEOUT_S:.0f} s"
            raise ClusterUnreachableError(
                f"cluster: got {self.address}, which cannot be reached ({reason}); expected the URL of a running Ray"
                " dashboard"
            ) from exc
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, aiohttp.http.HttpProcessingError) as exc:
            raise ClusterRefusedError(f"cluster: got {self.address!r}; expected a URL like http://host:8265") from exc
        except aiohttp.ClientError as exc:
            raise ClusterUnreachableError(f"cluster: {self.address} returned an invalid response ({exc})") from exc

    def _upload(self, runtime_env: dict[str, Any]) -> dict[str, Any]:
        names = ", ".join(str(item) for _, item in local_folders(runtime_env))
        try:
            import requests
            from ray.exceptions import AuthenticationError
        except ModuleNotFoundError as exc:
            raise SpecError(
                f"runtime_env: got {names}, which Ray packs and uploads, and Ray is not installed here; pip install"
                " 'ray[default]', or give URIs"
            ) from exc

        try:
            return upload_folders(self.address, runtime_env, self._headers, self._verify, self._cert, self._sent)
        except requests.RequestException as exc:
            raise ClusterUnreachableError(f"cluster: the runtime_env upload to {self.address} failed ({exc})") from exc
        except AuthenticationError as exc:
            raise ClusterRefusedError(f"token: {self.address} rejects the runtime_env upload") from exc
        except (ValueError, TypeError, OSError) as exc:
            raise SpecError(
                f"runtime_env: got {names}, which cannot be uploaded ({exc}); expected readable folders"
            ) from exc
        except RuntimeError as exc:  # a response that is neither success nor "not found"
            raise ApiError(503, str(exc), f"{self.address}/api/packages") from exc

    def _sent(self, count: int) -> None:
        self.uploaded += count


class LogStream:
    """A job's log, streamed from the cluster, with backpressure."""

    def __init__(self, response: aiohttp.ClientResponse, our_errors: Callable[[], AbstractContextManager[None]]):
        self._response = response
        self._our_errors = our_errors

    async def read(self) -> bytes:
        """The next bytes, about 100 kB at most; b"" at the end. Raises one of CLUSTER_ERRORS."""
        with self._our_errors():
            data: bytes = await self._response.content.readany()
            return data

    def close(self) -> None:
        self._response.close()


def _context(verify: bool | str, cert: str | None) -> ssl.SSLContext:
    """Raises ClusterRefusedError if a file cannot be read."""
    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except (OSError, ValueError) as exc:
        raise ClusterRefusedError(
            f"verify: got {verify!r}, which cannot be read ({exc}); expected true, false, or a file of CA certificates"
        ) from exc
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if cert is not None:
        try:
            context.load_cert_chain(cert)
        except (OSError, ValueError) as exc:
            raise ClusterRefusedError(
                f"cert: got {cert!r}, which cannot be read ({exc}); expected a PEM file with a certificate and its key"
            ) from exc
    return context


class ApiError(ClusterUnreachableError):
    """An HTTP error of the API. A 5xx says nothing about the job, so it counts as unreachable."""

    def __init__(self, status: int, text: str, url: str):
        super().__init__(f"cluster: {url} returned {status}: {text.strip().splitlines()[-1][:200] if text.strip() else ''}")
        self.args = status, text, url  # pickle rebuilds the error from these
        self.status = status
        self.text = text


class OtherAnswerError(ClusterUnreachableError):
    """Something else answers in the API's place, such as a gateway that asks for a login. That says nothing about a job."""

    def __init__(self, address: str, what: str):
        super().__init__(f"cluster: {address} did not answer as Ray's Jobs API does: {what}; a gateway may ask for a login")
        self.args = address, what


def _check_header(field: str, value: str) -> None:
    """Also checks a token from the environment: aiohttp would reject it, but not with one of our errors."""
    if not value.isprintable():
        raise SpecError(f"{field}: got text with a control character; expected text without control characters")


def _listed(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**item} for item in data["data"]["result"]["result"]]
