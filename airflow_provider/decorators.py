"""`@task.ray`: runs a function on the cluster. `@task.ray_train`: makes it the train loop that runs on every worker.

@task.ray(num_cpus=2)
def prepare(day):
    return {"rows": 1000, "path": "s3://…"}

@task.ray_train(scaling_config={"num_workers": 2})
def train(config):
    ...

result = train({"epochs": 5})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_provider.hooks import Place
from airflow_provider.operators import RayJobOperator, RayTrainOperator
from plugin_core.engine import RayJobResult, SpecError, StepSpec, call_arguments, refuse_beside_a_call


class RayTrainDecoratedOperator(DecoratedOperator, RayTrainOperator):
    """A RayTrainOperator whose loop is the decorated function, pickled by value; the call's argument is its config."""

    custom_operator_name = "@task.ray_train"
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *RayTrainOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **RayTrainOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        train_loop_config: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        if kwargs.get("spec") is not None:
            raise SpecError("spec: got one in @task.ray_train, whose function is the train loop; expected spec fields")
        if not (op_args or op_kwargs):
            parameters = list(inspect.signature(python_callable).parameters.values())
            default = parameters[0].default if parameters else None
            op_args = [train_loop_config or (default if isinstance(default, dict) else {})] if parameters else []
        elif train_loop_config is not None:
            raise SpecError("train_loop_config: got it in @task.ray_train and in the call; expected one or the other")
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            train_loop_per_worker=python_callable,
            **kwargs,
        )

    def build_spec(self, ti: Any, place: Place) -> StepSpec:
        config: Any = next(iter([*self.op_args, *self.op_kwargs.values()]), {})
        if not isinstance(config, Mapping):
            raise SpecError(f"train_loop_config: got {type(config).__name__} in the call; expected a mapping")
        self.spec = {**self.spec, "train_loop_config": dict(config)}
        return super().build_spec(ti, place)


class RayJobDecoratedOperator(DecoratedOperator, RayJobOperator):
    """A RayJobOperator whose function is the decorated one, pickled by value. Its XCom is what the function returns; the
    step's result is in the XCom `result`."""

    custom_operator_name = "@task.ray"
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *RayJobOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **RayJobOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        refuse_beside_a_call("@task.ray", {name for name, value in kwargs.items() if value is not None})
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            function=python_callable,
            arguments=call_arguments(python_callable, list(op_args or ()), op_kwargs),
            **kwargs,
        )

    def _hand_over(self, context: Any, result: dict[str, Any]) -> Any:
        super()._hand_over(context, result)
        context["ti"].xcom_push(key="result", value=result)
        return RayJobResult.model_validate(result).load()


def ray_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """`@task.ray(**fields of RayJobOperator)`."""
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=RayJobDecoratedOperator,
        **kwargs,
    )


def ray_train_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """`@task.ray_train(**fields of RayTrainOperator)`."""
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=RayTrainDecoratedOperator,
        **kwargs,
    )
