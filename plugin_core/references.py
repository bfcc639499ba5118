"""Strings that name something (a storage, a cluster, a model, a link), checked before anything uses them.

They reach us through XCom, templates, artifacts and files that other people write, so nothing is opened, imported, read
from the environment or shown as a link merely because a string says so. What passes these checks holds no secret and may
be shown; what does not is shown by `shown`.
"""

from __future__ import annotations

import os
import re
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from plugin_core.errors import SpecError

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
#: The addresses that get this installation's token also where they were read from an artifact.
CLUSTERS = "RAYTRAIN_CLUSTERS"

#: What Linux takes as a path is 4,096 bytes, and a run's own files need some of them; a name may have 255.
MAX_BYTES, MAX_NAME_BYTES = 2048, 255
_SECRET = re.compile(r"key|secret|token|pass|pwd|cred|connection_string|sas|sig|auth|code|session", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def shown(uri: str) -> str:
    """A URI that was not checked, for a message: without user-info, without the values of its query, on one line."""
    scheme, found, rest = _CONTROL.sub("?", uri).partition("://")
    if not found:
        return scheme
    rest, has_fragment, _ = rest.partition("#")
    place, _, query = rest.partition("?")
    authority = place.partition("/")[0]
    odd = ":" in authority and not re.fullmatch(r"(\[[0-9A-Fa-f:.]*\]|[^:]*):\d*", authority)
    if "@" in authority or (odd and "@" in rest):
        place = "…@" + rest.rpartition("@")[2].partition("?")[0]
    names = [pair.partition("=")[0] if "=" in pair else "…" for pair in query.split("&")] if query else []
    options = "?" + "&".join(f"{name}=…" for name in names) if names else ""
    return f"{scheme}://{place}{options}{'#…' if has_fragment else ''}"


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


def redacted(text: str) -> str:
    """A text in which each URL stands as `shown` shows it."""
    return re.sub(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]*", lambda found: shown(found.group()), text)


def split(uri: str) -> SplitResult:
    """The parts of a URI. Raises SpecError where it has none."""
    if _CONTROL.search(uri):
        raise SpecError(f"got {shown(uri)!r}, which has control characters in it; expected a path or URI without them")
    try:
        return urlsplit(uri)
    except ValueError as exc:
        raise SpecError(f"got {shown(uri)!r}, which is no URI; expected scheme://host/path") from exc


def check_local_path(path: str) -> None:
    """Raise SpecError where a path cannot be one, or looks like a URI with a slash missing."""
    if _CONTROL.search(path):
        raise SpecError(f"got {shown(path)!r}, which has control characters in it; expected a path or URI without them")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path):
        raise SpecError(f"got {shown(path)!r}; expected a local path, or a URI with '://'")


def check_storage_uri(uri: str) -> None:
    """Raise SpecError where a URI names no storage of ours, holds a secret, or is ambiguous."""
    parts = split(uri)
    if parts.scheme not in OPTIONS:
        raise SpecError(f"given {shown(uri)!r}; accepted are a local path and the schemes {', '.join(OPTIONS)}")
    if parts.password or (parts.username is not None and parts.scheme not in AZURE) or parts.netloc.count("@") > 1:
        raise SpecError(
            f"given {shown(uri)!r}; credentials do not belong into a URI, accepted are the storage's usual environment"
            " variables"
        )
    try:
        _ = parts.port
    except ValueError as exc:
        raise SpecError(f"got {shown(uri)!r}; expected a number from 0 to 65535 as port, or none") from exc
    if "#" in uri:
        raise SpecError(f"got {shown(uri)!r}; expected a URI without '#', which is written %23 in one")
    if any(part in (".", "..") for part in parts.path.split("/")):
        raise SpecError(f"got {shown(uri)!r}; expected a URI without '.' and '..' among its folders")
    _check_options(uri, parts)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise SpecError(f"got {shown(uri)!r}; expected file:///folder, or the path itself")
    elif not parts.netloc:
        raise SpecError(f"given {shown(uri)!r}; accepted is {parts.scheme}://bucket/prefix")


def _check_options(uri: str, parts: SplitResult) -> None:
    allowed, options = OPTIONS[parts.scheme], parse_qsl(parts.query, keep_blank_values=True)
    for name, value in options:
        if allowed is not None and name not in allowed:
            known = ", ".join(sorted(allowed)) or "none"
            raise SpecError(
                f"got {shown(uri)!r} with the option {name!r}; expected options of {parts.scheme}:// are {known}"
            )
        if _SECRET.search(name) and not value.startswith("$"):
            raise SpecError(
                f"given {parts.scheme}://{parts.hostname or ''}?{name}=…; a secret does not belong into a URI, accepted is"
                f" the name of an environment variable, {name}=$NAME"
            )
    if parts.scheme == "custom" and "filesystem" not in dict(options):
        raise SpecError(f"given {shown(uri)!r}; accepted is custom://folder?filesystem=package.module:function")


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


def check_run_name(field: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,127}", name):
        raise SpecError(
            f"{field}: given {name!r}; accepted are 1 to 128 letters, digits and . _ - = (no slash), not"
            " starting with a dot or dash"
        )


def check_model_name(field: str, name: str) -> None:
    """Of a model or an alias."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
        raise SpecError(
            f"{field}: given {name!r}; accepted are 1 to 100 letters, digits and . _ -, not starting with . or -"
        )


# ---- addresses


def check_address(field: str, address: str) -> None:
    """Of a cluster's dashboard. Raises SpecError where it is no http or https URL, or holds credentials or options."""
    try:
        parts = split(address)
        _ = parts.port
    except SpecError as exc:
        raise SpecError(f"{field}: {exc.message}") from None
    except ValueError:
        raise SpecError(f"{field}: got {shown(address)!r}, whose port is no number; expected http://host:8265") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError(f"{field}: given {shown(address)!r}; accepted is a URL like http://host:8265")
    if "@" in parts.netloc:
        raise SpecError(f"{field}: got {shown(address)!r} with credentials; expected it without, and token= or headers=")
    if "?" in address or "#" in address:
        raise SpecError(f"{field}: got {shown(address)!r}; expected a URL without '?' and '#', like http://host:8265")


def check_service(field: str, uri: str) -> None:
    """Of a tracking server or registry, a URL or a word of its library's. Raises SpecError where it holds credentials."""
    start = f"{field}: " if field else ""
    try:
        parts = split(uri)
    except SpecError as exc:
        raise SpecError(f"{start}{exc.message}") from None
    secrets = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if _SECRET.search(name)]
    if "@" in parts.netloc or secrets:
        what = "a password" if "@" in parts.netloc else secrets[0]
        raise SpecError(
            f"{start}given {shown(uri)!r} with {what}; accepted is it without; credentials belong into the cluster's"
            " environment"
        )


def is_known_cluster(address: str) -> bool:
    """Whether this installation names the address as one that its secrets may be sent to."""
    known = [*_listed(CLUSTERS), os.environ.get("RAY_API_SERVER_ADDRESS", ""), os.environ.get("RAY_ADDRESS", "")]
    return address.rstrip("/") in [each.rstrip("/") for each in known if each]


def link(url: str) -> str:
    """A URL that may be shown as a link, with nothing in it that could end one; "" for all but plain http and https."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or _CONTROL.search(url):
            return ""
    except ValueError:
        return ""
    return quote(url, safe=":/?#@!$&*+,;=.~%-_")


# ---- what the installation allows


def check_filesystem(reference: str) -> None:
    """Raise SpecError unless the installation allows URIs that call this `module:function`. Nothing is imported."""
    if reference not in _listed(FILESYSTEMS):
        raise SpecError(
            f"storage_path: got filesystem={reference}, which this installation does not allow; expected one that the"
            f" environment variable {FILESYSTEMS} lists, as {FILESYSTEMS}=package.module:function"
        )


def variable(option: str, name: str) -> str:
    """The environment variable that a URI's option names. Raises SpecError unless the installation allows it."""
    if name not in _listed(URI_VARIABLES):
        raise SpecError(
            f"storage_path: got {option}=${name}, which this installation does not allow; expected a variable that the"
            f" environment variable {URI_VARIABLES} lists, as {URI_VARIABLES}={name}"
        )
    if name not in os.environ:
        raise SpecError(f"storage_path: given {option}=${name}; the environment variable {name} is not set here")
    return os.environ[name]


def allowed_here() -> dict[str, str]:
    """What this installation allows, as environment variables for its jobs."""
    return {name: os.environ[name] for name in (FILESYSTEMS, URI_VARIABLES) if name in os.environ}


def _listed(setting: str) -> list[str]:
    return [entry.strip() for entry in os.environ.get(setting, "").split(",") if entry.strip()]
