"""A filesystem object as the URI that rebuilds it wherever a step runs.

What a URI cannot express is refused, above all a secret: the object would have to be pickled, with everything it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from plugin_core.storage.uris import OPTIONS, SECRET, quoted

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: Options that a URI need not contain: each process has its own.
_OURS = {"connect_timeout", "request_timeout", "background_writes", "load_frequency", "retry_time_limit"}
#: pyarrow's names of options → those of the libraries that open gs:// and abfs://.
_NAMES = {"project_id": "project", "default_bucket_location": "default_location"}
#: fsspec's protocols → the schemes that open them.
_SCHEMES = {
    "file": "file",
    "local": "file",
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "az": "abfs",
}
_OTHERWISE = "expected a URI as storage_path, and credentials from the environment of the cluster"


def uri_of(filesystem: FileSystem, path: str) -> str:
    """The URI of `path` on `filesystem`: pyarrow's local one, S3, GCS, Azure, a subtree of another, or an fsspec one.
    Raises ValueError for one that no URI can describe; the message contains no option values."""
    from pyarrow import fs

    match filesystem:
        case fs.SubTreeFileSystem():
            return uri_of(filesystem.base_fs, f"{filesystem.base_path.rstrip('/')}/{path.lstrip('/')}")
        case fs.LocalFileSystem():
            return path
        case fs.S3FileSystem():
            region = filesystem.region
            return _uri("s3", path, {"region": region, **_given(filesystem, fs.S3FileSystem(region=region))})
        case fs.GcsFileSystem():
            return _gcs(filesystem, path)
        case fs.AzureFileSystem():
            account = _options(filesystem)["account_name"]
            given = _given(filesystem, fs.AzureFileSystem(account))
            return _uri("abfs", path, {"account_name": account, **given})
        case fs.PyFileSystem() if isinstance(filesystem.handler, fs.FSSpecHandler):
            return _fsspec(filesystem.handler.fs, path)
        case fs.FileSystem():
            raise ValueError(f"got a {type(filesystem).__name__}, which no URI describes; {_OTHERWISE}")
        case _:
            raise ValueError(f"got a {type(filesystem).__name__}; expected a pyarrow.fs.FileSystem")


def _gcs(filesystem: Any, path: str) -> str:
    from pyarrow.fs import GcsFileSystem

    given = _given(filesystem, GcsFileSystem())
    scheme = given.pop("scheme", "https")
    if (endpoint := given.pop("endpoint_override", None)) is not None:
        given["endpoint_url"] = f"{scheme}://{endpoint}"
    return _uri("gs", path, {_NAMES.get(name, name): value for name, value in given.items()})


def _options(filesystem: Any) -> dict[str, Any]:
    """The options that a pyarrow filesystem was made with, which only its pickled form reveals."""
    options: dict[str, Any]
    _, (options,) = filesystem.__reduce__()
    return options


def _given(filesystem: Any, plain: Any) -> dict[str, Any]:
    """A filesystem's options that differ from those of a `plain` one."""
    defaults = _options(plain)
    return {
        name: value
        for name, value in _options(filesystem).items()
        if value and value != defaults[name] and name not in _OURS
    }


def _fsspec(filesystem: Any, path: str) -> str:
    protocols = [filesystem.protocol] if isinstance(filesystem.protocol, str) else list(filesystem.protocol)
    scheme = next((_SCHEMES[name] for name in protocols if name in _SCHEMES), None)
    if scheme is None:
        raise ValueError(f"got fsspec's {protocols[0]!r}; expected one of {', '.join(sorted(_SCHEMES))}, or a URI")
    options = {name: value for name, value in filesystem.storage_options.items() if value not in (None, "", False)}
    return path if scheme == "file" else _uri(scheme, path, options)


def _uri(scheme: str, path: str, options: dict[str, Any]) -> str:
    known = OPTIONS[scheme] or frozenset()
    for name, value in options.items():
        if SECRET.search(name):
            raise ValueError(f"got a filesystem with its own {name}; {_OTHERWISE}")
        if name not in known or not isinstance(value, (str, int, float)):
            raise ValueError(f"got a filesystem with {name}, which a {scheme}:// URI cannot say; {_OTHERWISE}")
    said = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in sorted(options.items())}
    return f"{scheme}://{quoted(path.strip('/'))}" + (f"?{urlencode(said)}" if said else "")
