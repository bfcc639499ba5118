"""S3: files of any size stream through pyarrow; small files go through boto3 in one request each.

pyarrow's S3 filesystem makes a lookup before each read and writes a small file in three requests; a process killed
meanwhile leaves an unfinished multipart upload, invisible but billed until it is aborted (pyarrow 25).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.storage.small_files import check_size
from plugin_core.storage.uris import S3_FLAGS

#: Seconds to wait for a connection and for each read. With botocore's default of 60 a lookup could take minutes.
CONNECT_S, READ_S = 5.0, 15.0
#: Connection pool size: one for each thread that may read at once (see `threads`).
CONNECTIONS = 64
#: The maximum number of keys per delete request.
BATCH = 1000
#: Attempts to read a response body if the connection breaks midway.
BODY_ATTEMPTS = 3
_ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})
_EXISTS = frozenset({"PreconditionFailed", "412"})
#: Another request was changing the object: S3 asks to send this one again, since neither may have created it.
_CONFLICT = frozenset({"ConditionalRequestConflict", "409"})
#: Seconds before each further attempt to create an object after a conflict.
CONFLICT_S = (0.05, 0.1, 0.2, 0.4, 0.8)


def opened(bucket: str, options: dict[str, str], attempts: int) -> tuple[Any, S3Objects]:
    """pyarrow's filesystem, and small-file access to the same storage. `attempts`: per request, in total."""
    from pyarrow import fs

    given: dict[str, Any] = {
        name: value.lower() == "true" if name in S3_FLAGS else value for name, value in options.items()
    }
    if "region" not in given and "endpoint_override" not in given:
        given["region"] = fs.resolve_s3_region(bucket)
    given["retry_strategy"] = fs.AwsStandardS3RetryStrategy(max_attempts=attempts)
    try:
        # a file smaller than one part is then sent in one request on close: a killed process leaves nothing behind
        made = fs.S3FileSystem(**{"allow_delayed_open": True} | given)
    except TypeError:  # an older pyarrow does not have this option
        made = fs.S3FileSystem(**given)
    return made, S3Objects(made, options, attempts)


class S3Objects:
    """Small files by `bucket/key` (see `small_files.SmallFiles`). Raises `errors()`, and SpecError without boto3."""

    def __init__(self, filesystem: Any, options: dict[str, str], attempts: int):
        self._fs = filesystem
        self._options = options
        self._attempts = attempts
        self._lock = threading.Lock()
        self._made: tuple[int, Any] = (0, None)

    @staticmethod
    def errors() -> tuple[type[Exception], ...]:
        try:
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError:
            return (OSError,)
        return OSError, BotoCoreError, ClientError

    def read(self, path: str, version: str = "", at_most: int | None = None) -> tuple[bytes | None, str]:
        bucket, key = _split(path)
        condition = {"IfNoneMatch": version} if version else {}

        code, found = _unless(
            {"304", "NotModified"} | _ABSENT,
            lambda: _whole(lambda: self._client().get_object(Bucket=bucket, Key=key, **condition), at_most),
        )
        if code:
            return None, "" if code in _ABSENT else version
        answer: tuple[bytes, str] = found
        return answer

    def write(self, path: str, data: bytes) -> None:
        bucket, key = _split(path)
        self._client().put_object(Bucket=bucket, Key=key, Body=data)

    def create(self, path: str, data: bytes) -> bool:
        bucket, key = _split(path)

        def put() -> Any:
            return self._client().put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")

        for wait_s in CONFLICT_S:
            code, _ = _unless(_EXISTS | _CONFLICT, put)
            if code not in _CONFLICT or self.is_file(path):
                return not code
            time.sleep(wait_s)
        code, _ = _unless(_EXISTS, put)
        return not code

    def is_file(self, path: str) -> bool:
        bucket, key = _split(path)
        code, _ = _unless(_ABSENT, lambda: self._client().head_object(Bucket=bucket, Key=key))
        return not code

    def names(self, path: str, after: str = "") -> list[str]:
        return list(self.versions(path, after))

    def versions(self, path: str, after: str = "") -> dict[str, str]:
        bucket, key = _split(path)
        prefix = f"{key}/" if key else ""
        given = {"StartAfter": prefix + after} if after else {}
        found: dict[str, str] = {}
        for page in self._pages("list_objects_v2", Bucket=bucket, Prefix=prefix, Delimiter="/", **given):
            found |= {item["Key"][len(prefix) :]: item["ETag"] for item in page.get("Contents", [])}
            found |= {item["Prefix"][len(prefix) : -1]: "" for item in page.get("CommonPrefixes", [])}
        found.pop("", None)  # a folder marker that some tools write
        return found

    def times(self, path: str) -> dict[str, float]:
        from pyarrow.fs import FileSelector, FileType

        # botocore takes three times the CPU time and holds the GIL, and `raytrain ls` lists each of hundreds of runs
        found = self._fs.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
        return {info.path[len(path) + 1 :]: info.mtime.timestamp() for info in found if info.type == FileType.File}

    def delete(self, path: str) -> None:
        bucket, key = _split(path)
        self._client().delete_object(Bucket=bucket, Key=key)

    def delete_dir(self, path: str, last: str = "") -> None:
        bucket, key = _split(path)
        pages = self._pages("list_objects_v2", Bucket=bucket, Prefix=f"{key}/")
        found = [item["Key"] for page in pages for item in page.get("Contents", [])]
        found.sort(key=lambda name: bool(last) and name.startswith(f"{key}/{last}/"))
        for start in range(0, len(found), BATCH):
            keys = [{"Key": name} for name in found[start : start + BATCH]]
            answer = self._client().delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
            if left := answer.get("Errors"):
                raise OSError(f"{len(left)} of {len(keys)} objects remain ({left[0].get('Code')}: {left[0].get('Key')})")

    def abort_uploads(self, path: str) -> int:
        bucket, key = _split(path)
        count = 0
        for page in self._pages("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/"):
            for upload in page.get("Uploads", []):
                self._abort(bucket, upload)
                count += 1
        return count

    def _abort(self, bucket: str, upload: dict[str, Any]) -> None:
        given = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
        _unless({"NoSuchUpload"}, lambda: self._client().abort_multipart_upload(**given))

    def _pages(self, operation: str, **given: Any) -> Iterator[dict[str, Any]]:
        pages: Iterator[dict[str, Any]] = iter(self._client().get_paginator(operation).paginate(**given))
        return pages

    def _client(self) -> Any:
        """One client per process: connections must not be shared with a forked child."""
        with self._lock:
            if self._made[0] != os.getpid():
                self._made = os.getpid(), _client(self._options, self._fs.region, self._attempts)
            return self._made[1]


def _client(options: dict[str, str], region: str, attempts: int) -> Any:
    try:
        from boto3.session import Session
        from botocore.config import Config
    except ImportError as exc:
        raise SpecError("storage_path: s3:// needs boto3: pip install 'ray-train-workflows[s3]'") from exc
    endpoint = options.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    virtual = options.get("force_virtual_addressing", "").lower() == "true"
    try:
        return Session().client(
            "s3",
            endpoint_url=endpoint,
            region_name=options.get("region") or region or None,
            use_ssl=options.get("scheme", "https") != "http",
            verify=options.get("tls_ca_file_path") or None,
            aws_access_key_id=options.get("access_key"),
            aws_secret_access_key=options.get("secret_key"),
            aws_session_token=options.get("session_token"),
            config=Config(
                connect_timeout=CONNECT_S,
                read_timeout=READ_S,
                max_pool_connections=CONNECTIONS,
                retries={"mode": "standard", "total_max_attempts": attempts},
                s3={"addressing_style": "virtual"} if virtual else None,
            ),
        )
    except ValueError:  # it shows the value, which may come from a variable
        raise SpecError(
            "storage_path: got an s3:// URI whose endpoint_override or region is invalid; expected host:port, and the name"
            " of a region"
        ) from None


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key


def _unless(codes: set[str] | frozenset[str], ask: Callable[[], Any]) -> tuple[str, Any]:
    """(code, None) if S3 rejects the request with one of `codes`, else ("", response)."""
    from botocore.exceptions import ClientError

    try:
        return "", ask()
    except ClientError as exc:
        code = str(exc.response.get("Error", {}).get("Code", ""))
        if code not in codes:
            raise
        return code, None


def _whole(ask: Callable[[], Any], at_most: int | None) -> tuple[bytes, str]:
    """A response's body and version. botocore retries requests, but not an interrupted body."""
    from botocore.exceptions import HTTPClientError, IncompleteReadError

    for left in reversed(range(BODY_ATTEMPTS)):
        answer = ask()
        try:
            with closing(answer["Body"]) as body:
                check_size(answer["ContentLength"], at_most)
                return body.read(), answer["ETag"]
        except (HTTPClientError, IncompleteReadError):
            if not left:
                raise
    raise AssertionError("unreachable")
