"""The Airflow plugin that registers the listener."""

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from airflow_provider import listener


class RayTrainPlugin(AirflowPlugin):
    name = "ray_train"
    listeners: ClassVar[list[Any]] = [listener]  # type: ignore[misc]  # as Airflow documents it
