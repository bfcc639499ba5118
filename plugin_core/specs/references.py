"""Validate references to registries, models, clusters, services and links before they are used or shown."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, quote, urlsplit

from plugin_core.errors import SpecError
from plugin_core.errors.redaction import CONTROL, shown_uri
from plugin_core.storage.location import Location
from plugin_core.storage.plugins import REGISTRIES, names
from plugin_core.storage.uris import SECRET, listed, split


def check_registry(uri: str) -> str:
    """A registry's URI; a local path is made absolute. Raises SpecError if it is invalid or contains credentials."""
    service, where = registry_service(uri)
    if not service:
        return Location.of(uri, "registry").uri
    check_service("registry", where)
    return uri


def registry_service(uri: str) -> tuple[str, str]:
    """The service of a registry's URI, `mlflow` or a plugin's name, and what follows it; ("", uri) for a folder."""
    name, _, where = uri.partition(":")
    if not where.startswith("//") and (name == "mlflow" or name in names(REGISTRIES)):
        return name, where
    return "", uri


#: The folder of the default model registry in a storage path, beside the runs.
REGISTRY_FOLDER = "_models"
#: Environment variable: addresses that get this installation's token even if read from an artifact.
CLUSTERS = "RAYTRAIN_CLUSTERS"


def check_run_name(field: str, name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,127}", name):
        raise SpecError(
            f"{field}: got {name!r}; expected 1 to 128 letters, digits and . _ - = (no slash), not"
            " starting with a dot or dash"
        )
    if name == REGISTRY_FOLDER:
        raise SpecError(f"{field}: got {name!r}, the folder of the model registry; expected another name")


def check_model_name(field: str, name: str) -> None:
    """Check the name of a model or an alias. Raises SpecError."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
        raise SpecError(f"{field}: got {name!r}; expected 1 to 100 letters, digits and . _ -, not starting with . or -")


def check_address(field: str, address: str) -> None:
    """Check a dashboard's address. Raises SpecError unless it is an http(s) URL without credentials or options."""
    try:
        parts = split(address)
        _ = parts.port
    except SpecError as exc:
        raise SpecError(f"{field}: {exc.message}") from None
    except ValueError:
        raise SpecError(f"{field}: got {shown_uri(address)!r} with an invalid port; expected http://host:8265") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError(f"{field}: got {shown_uri(address)!r}; expected a URL like http://host:8265")
    if "@" in parts.netloc:
        raise SpecError(
            f"{field}: got {shown_uri(address)!r} with credentials; expected a URL without them, and token= or headers="
        )
    if "?" in address or "#" in address:
        raise SpecError(f"{field}: got {shown_uri(address)!r}; expected a URL without '?' and '#', like http://host:8265")


def check_service(field: str, uri: str) -> None:
    """Check a tracking server or registry: a URL or its library's keyword. Raises SpecError if it has credentials."""
    start = f"{field}: " if field else ""
    try:
        parts = split(uri)
    except SpecError as exc:
        raise SpecError(f"{start}{exc.message}") from None
    secrets = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if SECRET.search(name)]
    if "@" in parts.netloc or secrets:
        what = "a password" if "@" in parts.netloc else secrets[0]
        raise SpecError(
            f"{start}got {shown_uri(uri)!r} with {what}; expected a URI without it: credentials belong in the cluster's"
            " environment"
        )


def is_known_cluster(address: str) -> bool:
    """Whether this installation lists the address as one that may receive its secrets."""
    known = [*listed(CLUSTERS), os.environ.get("RAY_API_SERVER_ADDRESS", ""), os.environ.get("RAY_ADDRESS", "")]
    return address.rstrip("/") in [each.rstrip("/") for each in known if each]


def safe_link(url: str) -> str:
    """A URL quoted so that it is safe as a link; "" for anything but plain http and https."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or CONTROL.search(url):
            return ""
    except ValueError:
        return ""
    return quote(url, safe=":/?#@!$&*+,;=.~%-_")
