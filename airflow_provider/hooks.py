"""Map an Airflow connection to the core's cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from airflow.sdk.log import mask_secret
from asgiref.sync import sync_to_async

from plugin_core.engine import (
    Cluster,
    FallbackCluster,
    LocalCluster,
    RayCluster,
    RayTrainWorkflowsError,
    Secrets,
    SpecError,
    describe_cluster,
    kuberay_from_json,
    run_sync,
    shown,
)

DEFAULT_CONN_ID = "ray_default"
#: The id of a connection, or several in order of preference.
ConnIds = str | Sequence[str] | None


@dataclass(frozen=True)
class Place:
    """The content of a connection: the cluster, and defaults for runs on it."""

    cluster: Cluster
    storage_path: str | None = None
    namespace: str = ""
    dashboard_url: str = ""
    #: see `FallbackCluster`; in a list of connections, the first one's applies
    after_s: float = FallbackCluster.after_s


class RayJobsHook(BaseHook):
    """The cluster behind a connection of type `rayjobs`.

    * Host, scheme (default `http`) and port (default 8265), or a full URL as host; the password is the Ray auth token.
      Extra: `verify`, `cert`, `headers`, `autoscaling`, `ship_package`, `env_vars` and `env_files` (set in each job, e.g.
      credentials), `dashboard_url` (the dashboard's address for browsers), `after_s`, and the defaults `storage_path` and
      `namespace`.
    * Extra `kuberay`: the fields of a `plugin_core.KubeRayCluster` as JSON, for one cluster per run, or per DAG run,
      on Kubernetes.
    * A list of ids: the step starts on the first cluster, and moves on to the next one if it gets no resources there
      for the first connection's `after_s` seconds (default 600), or if that cluster is lost (see
      `plugin_core.FallbackCluster`). The first connection also gives the defaults.
    * `ray_conn_id=None`: the embedded local cluster.
    * `ray_default`, if no such connection exists: also the embedded local cluster. It is one Ray head per machine and
      user, so this is for an Airflow whose workers and triggerer share one machine.
    * Any other id must exist.
    """

    conn_name_attr = "ray_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "rayjobs"
    hook_name = "Ray cluster (Jobs API)"

    def __init__(self, ray_conn_id: ConnIds = DEFAULT_CONN_ID, *, of: Any = None, **kwargs: Any):
        """`of`: the task instance whose DAG run the cluster belongs to, if the steps of a DAG run share one."""
        super().__init__(**kwargs)
        self.ray_conn_id = ray_conn_id
        self._of = of

    def get_cluster(self) -> Cluster:
        return self.get_place().cluster

    def get_place(self) -> Place:
        return _one_of([self._get_place(conn_id) for conn_id in _ids(self.ray_conn_id)])

    def _get_place(self, conn_id: str | None) -> Place:
        if conn_id is None:
            return Place(LocalCluster())
        try:
            place = _place(self.get_connection(conn_id), self._of)
        except AirflowNotFoundException:
            return _without_connection(conn_id)
        for value in _secrets(place.cluster):
            mask_secret(value)
        return place

    async def aget_cluster(self) -> Cluster:
        """`get_cluster` for a trigger: does not block the event loop."""
        return _one_of([await self._aget_place(conn_id) for conn_id in _ids(self.ray_conn_id)]).cluster

    async def _aget_place(self, conn_id: str | None) -> Place:
        if conn_id is None:
            return Place(LocalCluster())
        try:
            place = _place(await self.aget_connection(conn_id), self._of)
        except AirflowNotFoundException:
            return _without_connection(conn_id)
        for value in _secrets(place.cluster):
            await _amask_secret(value)
        return place

    def test_connection(self) -> tuple[bool, str]:
        """Called by the test button in the list of connections."""
        try:
            return True, run_sync(describe_cluster(self.get_cluster()))
        except RayTrainWorkflowsError as exc:
            return False, exc.message


def _ids(given: ConnIds) -> Sequence[str | None]:
    ids = [given] if given is None or isinstance(given, str) else given
    if not isinstance(ids, (list, tuple)) or not ids or not all(each is None or isinstance(each, str) for each in ids):
        raise SpecError(f"ray_conn_id: got {shown(given)}; expected the id of a connection, or a list of ids")
    return ids


def _one_of(places: Sequence[Place]) -> Place:
    """The place for a step that may run at any of these."""
    if len(places) == 1:
        return places[0]
    cluster = FallbackCluster([place.cluster for place in places], places[0].after_s)
    pages = {place.dashboard_url for place in places}
    return replace(places[0], cluster=cluster, dashboard_url=pages.pop() if len(pages) == 1 else "")


def _secrets(cluster: Cluster) -> list[str]:
    """Values for Airflow to mask in its logs, including those printed by a job."""
    return [*Secrets(cluster.env_vars, cluster.env_files).masks, *getattr(cluster, "headers", {}).values()]


async def _amask_secret(value: str) -> None:
    try:
        from airflow.sdk.log import amask_secret
    except ImportError:  # added in Airflow 3.3
        await sync_to_async(mask_secret)(value)
    else:
        await amask_secret(value)


def _without_connection(conn_id: str) -> Place:
    if conn_id == DEFAULT_CONN_ID:
        return Place(LocalCluster())
    raise SpecError(
        f"ray_conn_id: got {conn_id!r}, which does not exist; expected the id of a connection of type"
        f" {RayJobsHook.conn_type}, or None for the embedded local cluster"
    )


def _place(connection: Any, of: Any = None) -> Place:
    if connection.conn_type != RayJobsHook.conn_type:
        raise SpecError(
            f"ray_conn_id: got {connection.conn_id!r}, a connection of type {connection.conn_type!r}; expected one of"
            f" type {RayJobsHook.conn_type!r}"
        )
    extra = connection.extra_dejson
    common = {
        "token": connection.password or None,
        "headers": _texts("headers", extra.get("headers")),
        "verify": _verify(extra.get("verify")),
        "env_vars": _texts("env_vars", extra.get("env_vars")),
        "env_files": _texts("env_files", extra.get("env_files")),
        "ship_package": _flag("ship_package", extra.get("ship_package")),
    }
    defaults = (
        extra.get("storage_path") or None,
        extra.get("namespace") or "",
        extra.get("dashboard_url") or "",
        _seconds("after_s", extra.get("after_s")),
    )
    if kuberay := _object("kuberay", extra.get("kuberay")):
        cluster = kuberay_from_json(kuberay, **common)
        if of is not None:
            cluster = cluster.of_workflow("/".join((defaults[1], of.dag_id, of.run_id)))
        return Place(cluster, *defaults)
    common["cert"] = extra.get("cert") or None
    host = connection.host or ""
    if not host:
        raise SpecError(f"ray_conn_id: got {connection.conn_id!r}, which has no host; expected a host name or a URL")
    address = host if "://" in host else f"{connection.schema or 'http'}://{host}:{connection.port or 8265}"
    return Place(RayCluster(address, autoscaling=_flag("autoscaling", extra.get("autoscaling")), **common), *defaults)


def _texts(name: str, value: Any) -> dict[str, str]:
    return {str(key): str(item) for key, item in _object(name, value).items()}


def _object(name: str, value: Any) -> dict[str, Any]:
    """Read a JSON object: text from the form, or the object itself from a connection written as JSON."""
    try:
        given = json.loads(value) if isinstance(value, str) and value else value or {}
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise SpecError(f"{name}: got no JSON object in the connection's extra; expected one")
    return given


def _flag(name: str, value: Any) -> bool:
    """Read a flag, which the form gives as text."""
    if value is None or isinstance(value, bool):
        return bool(value)
    words = {"": False, "false": False, "true": True}
    if not isinstance(value, str) or value.lower() not in words:
        raise SpecError(f"{name}: got {shown(value)} in the connection's extra; expected true or false")
    return words[value.lower()]


def _seconds(name: str, value: Any) -> float:
    """Read seconds, which the form gives as text."""
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(FallbackCluster.after_s if value is None or value == "" else value)
    except (TypeError, ValueError, OverflowError):
        raise SpecError(f"{name}: got {shown(value)} in the connection's extra; expected seconds") from None


def _verify(value: Any) -> Any:
    """Read a flag or path, which the form gives as text; the cluster rejects anything else."""
    if value is None or value == "":
        return True
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value
