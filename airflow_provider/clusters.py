"""Operators that start and end a cluster shared by the steps of a DAG run. Both are optional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider.arguments import check_arguments
from airflow_provider.base import as_airflow_errors
from airflow_provider.common import SHARED_KEY
from airflow_provider.hooks import DEFAULT_CONN_ID, RayJobsHook
from airflow_provider.stored import remember
from plugin_core.engine import Cluster, end_shared, run_sync, start_shared


class _SharedClusterOperator(BaseOperator):
    template_fields: Sequence[str] = ("ray_conn_id",)
    ui_color = "#d5ecfa"

    def __init__(self, *, ray_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any):
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        self.ray_conn_id = ray_conn_id

    def _cluster(self, context: Any) -> Cluster:
        return RayJobsHook(self.ray_conn_id, of=context["ti"]).get_cluster()


class StartRayClusterOperator(_SharedClusterOperator):
    """Start the cluster that the steps of this DAG run share (a connection whose `kuberay` has `"share": "workflow"`), and
    wait until it is ready, even if it is queued. The first step would do the same; this operator makes it visible in
    the DAG.

    Use it `.as_setup()`. The cluster is deleted at the end of the DAG run, or by `EndRayClusterOperator`. Safe to retry.
    """

    def execute(self, context: Any) -> None:
        with as_airflow_errors():
            cluster = self._cluster(context)
            remember(context, SHARED_KEY, self.ray_conn_id)  # before it exists, in case this task dies
            self.log.info("ready: %s", run_sync(start_shared(cluster, self.log.info)))


class EndRayClusterOperator(_SharedClusterOperator):
    """Delete that cluster before the DAG run ends, unless a step is still on it. Use it `.as_teardown()`. Safe to
    retry."""

    def execute(self, context: Any) -> None:
        with as_airflow_errors():
            run_sync(end_shared(self._cluster(context)))
