"""Strings that name something (a storage, a cluster, a model, a link), checked before anything uses them.

They reach us through XCom, templates, artifacts and files that other people write, so nothing is opened, imported, read
from the environment or shown as a link merely because a string says so. What passes these checks holds no secret and may
be shown; what does not is shown by `shown`.
"""

from __future__ import annotations

import os
import re
from urllib.parse import SplitResult, parse_qsl, urlsplit

from plugin_core.errors import SpecError
from plugin_core.errors.redaction import CONTROL, shown_uri

_S3 = """region scheme endpoint_override access_key secret_key session_token allow_bucket_creation allow_bucket_deletion
    check_directory_existence_before_creation allow_delayed_open force_virtual_addressing tls_ca_file_path
    tls_verify_certificates smart_defaults"""
_S3FS = """endpoint_url key secret token anon use_ssl requester_pays default_block_size version_aware cache_regions
    max_concurrency fixed_upload_size"""
_GCSFS = """project token access endpoint_url consistency default_location requester_pays version_aware block_size timeout
    check_connection"""
_ADLFS = """account_name account_key account_host connection_string credential sas_token client_id client_secret tenant_id
    anon location_mode blocksize max_concurrency version_aware assume_container_exists"""
#: Scheme → the options that a URI of it may have; None: any, since they go to a function of the user's.
OPTIONS: dict[str, frozenset[str] | None] = {
    "file": frozenset(),
    "s3": frozenset(_S3.split()),
    "s3fs": frozenset(_S3FS.split()),
    "gs": frozenset(_GCSFS.split()),
    "gcsfs": frozenset(_GCSFS.split()),
    "abfs": frozenset(_ADLFS.split()),
    "adlfs": frozenset(_ADLFS.split()),
    "memory": frozenset(),
    "custom": None,
}
AZURE = ("abfs", "adlfs")

#: Environment variables by which an installation allows what a URI alone may not: `module:function` of custom:// URIs, and
#: the variables that an option may name as $NAME. They go along with each job, so that the cluster allows the same.
FILESYSTEMS, URI_VARIABLES = "RAYTRAIN_FILESYSTEMS", "RAYTRAIN_URI_VARIABLES"

#: What Linux takes as a path is 4,096 bytes, and a run's own files need some of them; a name may have 255.
MAX_BYTES, MAX_NAME_BYTES = 2048, 255
SECRET = re.compile(r"key|secret|token|pass|pwd|cred|connection_string|sas|sig|auth|code|session", re.IGNORECASE)


def check_length(uri: str) -> None:
    """Raise SpecError where no file system takes it as a path."""
    size = len(uri.encode(errors="replace"))
    if size > MAX_BYTES:
        raise SpecError(f"got {uri[:60]!r}… of {size:,} bytes; expected at most {MAX_BYTES:,}")
    for name in uri.partition("?")[0].split("/"):
        if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
            raise SpecError(
                f"got {name[:60]!r}… in a path, of {len(name):,} characters; expected at most {MAX_NAME_BYTES} bytes"
            )


def split(uri: str) -> SplitResult:
    """The parts of a URI. Raises SpecError where it has none."""
    if CONTROL.search(uri):
        raise SpecError(f"got {shown_uri(uri)!r}, which has control characters in it; expected a path or URI without them")
    try:
        return urlsplit(uri)
    except ValueError as exc:
        raise SpecError(f"got {shown_uri(uri)!r}, which is no URI; expected scheme://host/path") from exc


def check_local_path(path: str) -> None:
    """Raise SpecError where a path cannot be one, or looks like a URI with a slash missing."""
    if CONTROL.search(path):
        raise SpecError(f"got {shown_uri(path)!r}, which has control characters in it; expected a path or URI without them")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):
        raise SpecError(f"got {shown_uri(path)!r}; expected a local path, or a URI with '://'")


def check_storage_uri(uri: str) -> None:
    """Raise SpecError where a URI names no storage of ours, holds a secret, or is ambiguous."""
    parts = split(uri)
    if parts.scheme not in OPTIONS:
        raise SpecError(f"got {shown_uri(uri)!r}; expected a local path and the schemes {', '.join(OPTIONS)}")
    if parts.password or (parts.username is not None and parts.scheme not in AZURE) or parts.netloc.count("@") > 1:
        raise SpecError(
            f"got {shown_uri(uri)!r}; credentials do not belong into a URI, expected the storage's usual environment"
            " variables"
        )
    try:
        _ = parts.port
    except ValueError as exc:
        raise SpecError(f"got {shown_uri(uri)!r}; expected a number from 0 to 65535 as port, or none") from exc
    if "#" in uri:
        raise SpecError(f"got {shown_uri(uri)!r}; expected a URI without '#', which is written %23 in one")
    if any(part in (".", "..") for part in parts.path.split("/")):
        raise SpecError(f"got {shown_uri(uri)!r}; expected a URI without '.' and '..' among its folders")
    _check_options(uri, parts)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise SpecError(f"got {shown_uri(uri)!r}; expected file:///folder, or the path itself")
    elif not parts.netloc:
        raise SpecError(f"got {shown_uri(uri)!r}; expected {parts.scheme}://bucket/prefix")


def _check_options(uri: str, parts: SplitResult) -> None:
    allowed, options = OPTIONS[parts.scheme], parse_qsl(parts.query, keep_blank_values=True)
    for name, value in options:
        if allowed is not None and name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise SpecError(
                f"got {shown_uri(uri)!r} with the option {name!r}; expected options of {parts.scheme}:// are {known}"
            )
        if SECRET.search(name) and not value.startswith("$"):
            raise SpecError(
                f"got {parts.scheme}://{parts.hostname or ''}?{name}=…; a secret does not belong into a URI, expected"
                f" the name of an environment variable, {name}=$NAME"
            )
    if parts.scheme == "custom" and "filesystem" not in dict(options):
        raise SpecError(f"got {shown_uri(uri)!r}; expected custom://folder?filesystem=package.module:function")


def check_below(home: str, part: str) -> None:
    """Raise SpecError where a name, or a relative path, would lead out of `home`, or to it itself."""
    if not part or part.startswith("/") or ".." in part.split("/") or "\0" in part:
        raise SpecError(f"path: got {part!r}; expected a name below {home}")


def quoted(part: str) -> str:
    """A name as a part of a URI's path: only what would end the path is quoted, all other names stay as they are."""
    return part.replace("#", "%23").replace("?", "%3F")


def unquoted(path: str) -> str:
    return path.replace("%23", "#").replace("%3F", "?")


# ---- names


# ---- addresses


# ---- what the installation allows


def check_filesystem(reference: str) -> None:
    """Raise SpecError unless the installation allows URIs that call this `module:function`. Nothing is imported."""
    if reference not in listed(FILESYSTEMS):
        raise SpecError(
            f"storage_path: got filesystem={reference}, which this installation does not allow; expected one that the"
            f" environment variable {FILESYSTEMS} lists, as {FILESYSTEMS}=package.module:function"
        )


def variable(option: str, name: str) -> str:
    """The environment variable that a URI's option names. Raises SpecError unless the installation allows it."""
    if name not in listed(URI_VARIABLES):
        raise SpecError(
            f"storage_path: got {option}=${name}, which this installation does not allow; expected a variable that the"
            f" environment variable {URI_VARIABLES} lists, as {URI_VARIABLES}={name}"
        )
    if name not in os.environ:
        raise SpecError(f"storage_path: got {option}=${name}; the environment variable {name} is not set here")
    return os.environ[name]


def allowed_here() -> dict[str, str]:
    """What this installation allows, as environment variables for its jobs."""
    return {name: os.environ[name] for name in (FILESYSTEMS, URI_VARIABLES) if name in os.environ}


def listed(setting: str) -> list[str]:
    return [entry.strip() for entry in os.environ.get(setting, "").split(",") if entry.strip()]
