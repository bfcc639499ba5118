"""Options of clusters: from Python, and from an Airflow connection."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from plugin_core import FallbackCluster, KubeRayCluster, KubeRaySettings, LocalCluster, RayCluster
from tests.fuzz import values as v
from tests.fuzz.case import Case
from tests.fuzz.values import Given
from tests.fuzz.ways import refusing

_WORD = [
    *v.NOTHING,
    Given("a number", 5),
    Given("empty", ""),
    Given("NUL", "a\0"),
    Given("a line", "a\nb"),
    Given("a list", []),
]
_SECRET = [
    *v.NOTHING,
    Given("a number", 5),
    Given("a line", "a\r\nX: y"),
    Given("surrogate", "\ud800"),
    Given("a list", ["a"]),
]
_HEADERS = [
    *v.NOTHING,
    *(Given(name, value) for name, value in {"text": "x", "a number": {"A": 1}, "a line": {"A": "x\r\nB: y"}}.items()),
    *(Given(name, value) for name, value in {"a key": {1: "x"}, "a space": {"A B": "x"}, "colon": {"A:": "x"}}.items()),
    Given("fine", {"X-Token": "x"}, "a header"),
]
_VERIFY = [
    *v.NOTHING,
    Given("a number", 5),
    Given("no", "no"),
    Given("empty", ""),
    Given("no file", "/none.pem"),
    Given("a list", []),
]
_CERT = [*_WORD, Given("no file", "/none.pem")]
_UNITS = [given for given in v.COUNT if given.value != 0]
_AT_LEAST_NONE = [given for given in v.WHOLE if given.value != 10**6]
_ADDRESS = [
    *v.NOTHING,
    *(
        Given(f"{value!r:.30}", value)
        for value in ("", "foo", "http://", "http://[::1", "ftp://h", 5, "http://u:p@h", "//h")
    ),
    *(
        Given(f"{value!r:.30}", value)
        for value in ("http://h:port", "http://h\n", "http://h:99999", "javascript:x", "h:8265")
    ),
]
_JOBS = {"token": _SECRET, "headers": _HEADERS, "verify": _VERIFY, "python": _WORD, "env_vars": v.VARIABLES}
_JOBS |= {"ship_package": v.FLAG}
_FILES = [given for given in v.VARIABLES if given.name != "endless"]  # their size is looked at before the submit
FIELDS: dict[str, dict[str, list[Given]]] = {
    "RayCluster": {"address": _ADDRESS, **_JOBS, "cert": _CERT, "env_files": _FILES, "autoscaling": v.FLAG},
    "LocalCluster": {
        **{"num_cpus": _UNITS, "num_gpus": _AT_LEAST_NONE, "idle_timeout_s": v.SECONDS},
        **{"env_vars": v.VARIABLES, "env_files": _FILES, "preload": v.FLAG},
        "full_dashboard": v.FLAG,
    },
    "KubeRayCluster": {
        **{
            "name": [*_WORD, Given("capitals", "A"), Given("long", "a" * 60)],
            "namespace": [*_WORD, Given("a slash", "a/b")],
        },
        **{"address": [*_ADDRESS, Given("an attribute", "{name.foo}"), Given("a slip", "http://{nam}")]},
        **{
            "manifest": [*v.NOTHING, Given("a kind", {"kind": "Pod"}), Given("no file", "/none.yaml"), Given("a number", 5)]
        },
        **{"ttl_s": v.GRACE, "start_timeout_s": v.SECONDS, "on_success": v.WORD, "kubeconfig": _WORD, "context": _WORD},
        **_JOBS,
    },
    "KubeRaySettings": {
        **{"image": _WORD, "workers": _AT_LEAST_NONE, "cpus": _UNITS, "gpus": _AT_LEAST_NONE},
        **{
            "memory": [
                *_WORD,
                Given("negative", "-4Gi"),
                Given("words", "much"),
                Given("fine", "512Mi", "as Kubernetes writes it"),
            ]
        },
        **{"idle_timeout_s": v.COUNT, "service_account": _WORD},
    },
}
FIELDS["FallbackCluster"] = {
    "clusters": [
        *v.NOTHING,
        Given("text", "http://h:8265"),
        Given("a number", 5),
        Given("empty", []),
        Given("a mapping", {"a": 1}),
        Given("addresses", ["http://h:8265"]),
        Given("twice the same", [LocalCluster(), LocalCluster()]),
        Given("too many", [RayCluster(f"http://h:{port}") for port in range(1, 10)]),
    ],
    "after_s": v.SECONDS,
}
_NEEDED: dict[str, dict[str, Any]] = {
    "FallbackCluster": {"clusters": [LocalCluster()]},
    "RayCluster": {"address": "http://127.0.0.1:1"},
    "LocalCluster": {},
    "KubeRayCluster": {"name": "a"},
    "KubeRaySettings": {"image": "x"},
}


def cluster_cases() -> Iterator[Case]:
    for name, table in FIELDS.items():
        for field, values in table.items():
            for given in values:
                call = functools.partial(_make, name, {**_NEEDED[name], field: given.value})
                yield _case("cluster", f"{name}.{field}", given, call)
    for field, values in FIELDS["RayCluster"].items():
        if field in ("token", "python", "address"):
            continue
        for given in values:
            if _is_json(given.value) and given.value not in ("", None, [], {}, False, 0):
                text_as_words = field in ("env_vars", "env_files", "headers") and given.name in (
                    "a number",
                    "a flag",
                    "nothing",
                )
                flag_as_text = field == "autoscaling" and given.name == "text"
                if text_as_words or flag_as_text or (field == "verify" and given.name == "a list"):
                    continue
                yield _case("connection", f"extra.{field}", given, functools.partial(_by_connection, field, given.value))


def _case(way: str, name: str, given: Given, call: Callable[[], Any]) -> Case:
    field = name.rpartition(".")[2]
    return Case(way, f"{name}: {given.name}", functools.partial(refusing, call), given.wrong, (field,), given.reason)


def _make(name: str, options: dict[str, Any]) -> None:
    kinds = (FallbackCluster, LocalCluster, RayCluster, KubeRayCluster, KubeRaySettings)
    by_name: dict[str, Any] = {cls.__name__: cls for cls in kinds}
    made = by_name[name](**options)
    if name == "RayCluster" or "verify" in options:
        _ask(made.address, made.verify, getattr(made, "cert", None))


def _ask(address: str, verify: Any, cert: str | None = None) -> None:
    """Up to the opening of a connection; nobody answers there."""
    from plugin_core.clusters.jobs_api import JobsClient
    from plugin_core.errors import ClusterUnreachableError

    async def work() -> None:
        nobody = address if "127" in address else "http://127.0.0.1:1"
        async with JobsClient(nobody, None, None, verify, cert) as client:
            await client.version()

    try:
        asyncio.run(work())
    except ClusterUnreachableError:
        return


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return not isinstance(value, dict) or all(isinstance(key, str) for key in value)


def _by_connection(field: str, value: Any) -> None:
    from types import SimpleNamespace

    from airflow_provider.hooks import _place

    connection = SimpleNamespace(
        **{
            "conn_id": "c",
            "conn_type": "rayjobs",
            "host": "http://127.0.0.1:1",
            "password": "",
            "schema": "",
            "port": None,
        },
        extra_dejson={field: value},
    )
    place = _place(connection)
    _ask(place.cluster.address, place.cluster.verify, place.cluster.cert)  # type: ignore[attr-defined]
