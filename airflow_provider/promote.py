"""The operator that moves a model's alias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider.arguments import check_arguments
from airflow_provider.base import as_airflow_errors, as_reference
from plugin_core.engine import CHAMPION, promote, promoted


class PromoteModelOperator(BaseOperator):
    """Point a model's alias to a result's checkpoint (`plugin_core.promote`); returns the version it points to
    afterwards. Safe to retry. Clearing an old DAG run does not move the alias back: the log and the version's `kept`
    say why. `result` may be another task's output."""

    template_fields: Sequence[str] = ("result", "name", "alias", "registry", "dataset")
    ui_color = "#e8f7d4"

    def __init__(
        self,
        *,
        result: Any,
        name: str,
        alias: str = CHAMPION,
        registry: str | None = None,
        dataset: str | None = None,
        force: bool = False,
        allow_older: bool = False,
        **kwargs: Any,
    ):
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        self.result = result
        self.name = name
        self.alias = alias
        self.registry = registry
        self.dataset = dataset
        self.force = force
        self.allow_older = allow_older

    def execute(self, context: Any) -> dict[str, Any]:
        with as_airflow_errors():
            version = promote(
                as_reference("result", self.result),
                self.name,
                self.alias,
                registry=self.registry,
                dataset=self.dataset,
                force=self.force,
                allow_older=self.allow_older,
            )
        if version.kept:
            self.log.warning("%s", version.kept)
        else:
            self.log.info("%s", promoted(version, self.alias))
        return version.to_json()
