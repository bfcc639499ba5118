"""Validate storage URIs before anything uses them.

They reach us through XCom, templates, artifacts and files that other people write, so nothing is opened, imported, read
from the environment or shown as a link merely because a string says so. A URI that passes these checks holds no secret and
may be shown; any other is redacted by `shown_uri`.
"""

from __future__ import annotations

import os
import re
from urllib.parse import SplitResult, parse_qsl, urlsplit

from plugin_core.errors import SpecError
from plugin_core.errors.redaction import CONTROL, shown_uri
from plugin_core.storage.plugins import STORAGES, names

#: Options of `pyarrow.fs.S3FileSystem` that are true or false.
_S3_FLAGS = """allow_bucket_creation allow_bucket_deletion allow_delayed_open check_directory_existence_before_creation
    force_virtual_addressing"""
S3_FLAGS = frozenset(_S3_FLAGS.split())
_S3 = "region scheme endpoint_override access_key secret_key session_token tls_ca_file_path"
_S3FS = """endpoint_url key secret token anon use_ssl requester_pays default_block_size version_aware cache_regions
    max_concurrency fixed_upload_size"""
_GCSFS = """project token access endpoint_url consistency default_location requester_pays version_aware block_size timeout
    check_connection"""
_ADLFS = """account_name account_key account_host connection_string credential sas_token client_id client_secret tenant_id
    anon location_mode blocksize max_concurrency version_aware assume_container_exists"""
#: Scheme → allowed URI options; None: any, since a user's function gets them (as a plugin does for its own scheme).
OPTIONS: dict[str, frozenset[str] | None] = {
    "file": frozenset(),
    "s3": S3_FLAGS | frozenset(_S3.split()),
    "s3fs": frozenset(_S3FS.split()),
    "gs": frozenset(_GCSFS.split()),
    "gcsfs": frozenset(_GCSFS.split()),
    "abfs": frozenset(_ADLFS.split()),
    "adlfs": frozenset(_ADLFS.split()),
    "memory": frozenset(),
    "custom": None,
}
AZURE = ("abfs", "adlfs")

#: Environment variables by which an installation allows what a URI alone may not do: call the `module:function` of a
#: custom:// URI, and name a variable as $NAME in an option. They are passed to each job, so the cluster allows the
#: same.
FILESYSTEMS, URI_VARIABLES = "RAYTRAIN_FILESYSTEMS", "RAYTRAIN_URI_VARIABLES"

#: Linux limits a path to 4,096 bytes, some of which a run's own files need, and a name to 255.
MAX_BYTES, MAX_NAME_BYTES = 2048, 255
SECRET = re.compile(r"key|secret|token|pass|pwd|cred|connection_string|sas|sig|auth|code|session", re.IGNORECASE)


def check_length(uri: str) -> None:
    """Raise SpecError if a URI is too long for a file system path."""
    size = len(uri.encode(errors="replace"))
    if size > MAX_BYTES:
        raise SpecError(f"got {uri[:60]!r}… of {size:,} bytes; expected at most {MAX_BYTES:,}")
    for name in uri.partition("?")[0].split("/"):
        if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
            raise SpecError(
                f"got {name[:60]!r}… in a path, of {len(name):,} characters; expected at most {MAX_NAME_BYTES} bytes"
            )


def split(uri: str) -> SplitResult:
    """Split a URI. Raises SpecError if it is invalid."""
    if CONTROL.search(uri):
        raise SpecError(f"got {shown_uri(uri)!r}, which contains control characters; expected a path or URI without them")
    try:
        return urlsplit(uri)
    except ValueError as exc:
        raise SpecError(f"got {shown_uri(uri)!r}; expected scheme://host/path") from exc


def check_local_path(path: str) -> None:
    """Raise SpecError if a path is invalid, or looks like a URI with a missing slash."""
    if CONTROL.search(path):
        raise SpecError(f"got {shown_uri(path)!r}, which contains control characters; expected a path or URI without them")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):
        raise SpecError(f"got {shown_uri(path)!r}; expected a local path, or a URI with '://'")


def check_storage_uri(uri: str) -> None:
    """Raise SpecError if a URI has an unsupported scheme, holds a secret, or is ambiguous."""
    parts = split(uri)
    if parts.scheme not in OPTIONS and parts.scheme not in (added := names(STORAGES)):
        known = ", ".join([*OPTIONS, *added])
        raise SpecError(f"got {shown_uri(uri)!r}; expected a local path or a URI with scheme {known}")
    if parts.password or (parts.username is not None and parts.scheme not in AZURE) or parts.netloc.count("@") > 1:
        raise SpecError(
            f"got {shown_uri(uri)!r} with credentials; expected a URI without them, and the storage's usual environment"
            " variables"
        )
    try:
        _ = parts.port
    except ValueError as exc:
        raise SpecError(f"got {shown_uri(uri)!r}; expected a port from 0 to 65535, or none") from exc
    if "#" in uri:
        raise SpecError(f"got {shown_uri(uri)!r}; expected a URI without '#' (write it as %23)")
    if any(part in (".", "..") for part in parts.path.split("/")):
        raise SpecError(f"got {shown_uri(uri)!r}; expected a URI without '.' and '..' segments")
    _check_options(uri, parts)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise SpecError(f"got {shown_uri(uri)!r}; expected file:///folder, or the path itself")
    elif not parts.netloc:
        raise SpecError(f"got {shown_uri(uri)!r}; expected {parts.scheme}://bucket/prefix")


def _check_options(uri: str, parts: SplitResult) -> None:
    allowed, options = OPTIONS.get(parts.scheme), parse_qsl(parts.query, keep_blank_values=True)
    for name, value in options:
        if allowed is not None and name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise SpecError(f"got {shown_uri(uri)!r} with option {name!r}; expected options of {parts.scheme}://: {known}")
        if parts.scheme == "s3" and name in S3_FLAGS and value.lower() not in ("true", "false"):
            raise SpecError(f"got {shown_uri(uri)!r} with option {name!r}; expected true or false as its value")
        if SECRET.search(name) and not value.startswith("$"):
            raise SpecError(
                f"got {parts.scheme}://{parts.hostname or ''}?{name}=…; a secret must be given as"
                f" the name of an environment variable, expected {name}=$NAME"
            )
    if parts.scheme == "custom" and "filesystem" not in dict(options):
        raise SpecError(f"got {shown_uri(uri)!r}; expected custom://folder?filesystem=package.module:function")


def check_below(home: str, part: str) -> None:
    """Raise SpecError if a name or relative path leads outside `home`, or to `home` itself."""
    if not part or part.startswith("/") or ".." in part.split("/") or "\0" in part:
        raise SpecError(f"path: got {part!r}; expected a name below {home}")


def quoted(part: str) -> str:
    """A name as part of a URI's path: only characters that would end the path are quoted."""
    return part.replace("#", "%23").replace("?", "%3F")


def unquoted(path: str) -> str:
    return path.replace("%23", "#").replace("%3F", "?")


# ---- what the installation allows


def check_filesystem(reference: str) -> None:
    """Raise SpecError unless the installation allows URIs to call this `module:function`. Imports nothing."""
    if reference not in listed(FILESYSTEMS):
        raise SpecError(
            f"storage_path: got filesystem={reference}, which this installation does not allow; expected one listed in the"
            f" environment variable {FILESYSTEMS}, as in {FILESYSTEMS}=package.module:function"
        )


def variable(option: str, name: str) -> str:
    """The value of the environment variable that a URI's option names. Raises SpecError unless this is allowed."""
    if name not in listed(URI_VARIABLES):
        raise SpecError(
            f"storage_path: got {option}=${name}, which this installation does not allow; expected a variable listed in the"
            f" environment variable {URI_VARIABLES}, as in {URI_VARIABLES}={name}"
        )
    if name not in os.environ:
        raise SpecError(f"storage_path: got {option}=${name}; the environment variable {name} is not set here")
    return os.environ[name]


def allowed_here() -> dict[str, str]:
    """This installation's allowances, as environment variables for its jobs."""
    return {name: os.environ[name] for name in (FILESYSTEMS, URI_VARIABLES) if name in os.environ}


def listed(setting: str) -> list[str]:
    return [entry.strip() for entry in os.environ.get(setting, "").split(",") if entry.strip()]
