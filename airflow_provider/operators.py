"""The operators: one step each, run as a Ray job, its result a small JSON dict in XCom.

    train = RayTrainOperator(task_id="train", train_loop_per_worker=train_loop, scaling_config={"num_workers": 2})
    RayEvaluateOperator(task_id="evaluate", evaluate=evaluate, checkpoint=train.output)

What a step does is `plugin_core`'s to say; here is only what Airflow adds: connection, templates, the run's name, deferral.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    BaseOperator,
)

from airflow_provider.common import error_payload, metadata, over, task_state, teller
from airflow_provider.hooks import DEFAULT_CONN_ID, Place, RayJobsHook
from airflow_provider.links import RayJobLink
from airflow_provider.triggers import RayStepTrigger
from plugin_core.clusters import Cluster
from plugin_core.errors import RayTrainWorkflowsError, SpecError
from plugin_core.results import AnyResult
from plugin_core.rundir import RunDir, run_name
from plugin_core.specs import BatchInferSpec, EvaluateSpec, StepSpec, TrainSpec, load_spec, parse_spec
from plugin_core.supervisor import Supervisor, cancel, prepare, run_sync

#: What a deferred task resumes with when its trigger itself broke.
_TRIGGER_FAILED = "__fail__"


class RayStepOperator(BaseOperator):
    """A step on a Ray cluster.

    :param spec: the whole step: a spec, a dict of its fields, or the path of a YAML or JSON file (relative to the DAG
        file). Instead of it, a subclass takes the spec's fields as keyword arguments.
    :param ray_conn_id: a connection of type `rayjobs`; None, or no connection `ray_default`: the embedded local cluster.
    :param storage_path: where the run is kept, for a spec that names no place; default: the connection's, then
        `RAY_STORAGE`, then `~/ray_results`.
    :param run_name: the run's name, under which a retry resumes it; default: the spec's `run_config.name`, then one made
        of the DAG's, run's and task's ids.
    :param deferrable: give the worker slot back while the Ray job runs.
    :param run_config, limits, runtime_env: the spec's fields of these names.

    Templates are rendered in every string of the spec; functions stay as they are.
    """

    template_fields: Sequence[str] = ("spec", "run_name", "storage_path", "ray_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json"}
    operator_extra_links = (RayJobLink(),)
    ui_color = "#d5ecfa"
    spec_class: ClassVar[type[StepSpec]] = StepSpec

    def __init__(
        self,
        *,
        spec: Any = None,
        ray_conn_id: str | None = DEFAULT_CONN_ID,
        storage_path: str | None = None,
        run_name: str | None = None,
        deferrable: bool = True,
        run_config: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        runtime_env: dict[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        all_fields = {**(fields or {}), "run_config": run_config, "limits": limits, "runtime_env": runtime_env}
        given = {name: value for name, value in all_fields.items() if value is not None}
        if spec is not None and given:
            raise SpecError(f"spec: given together with {', '.join(sorted(given))}; accepted is one or the other")
        # a spec becomes a dict: its strings are templates too, and Airflow compares what it serialises of it
        if isinstance(spec, StepSpec):
            spec = {**spec.model_dump(exclude_unset=True), "kind": type(spec).model_fields["kind"].default}
        self.spec = given if spec is None else spec
        self.ray_conn_id = ray_conn_id
        self.storage_path = storage_path
        self.run_name = run_name
        self.deferrable = deferrable
        self._following: tuple[Supervisor, Any] | None = None

    def render_template(self, content: Any, *args: Any, **kwargs: Any) -> Any:
        """Functions and classes of the spec are no templates, whatever attributes they have."""
        if isinstance(content, type) or inspect.isroutine(content):
            return content
        return super().render_template(content, *args, **kwargs)

    def execute(self, context: Any) -> dict[str, Any]:
        ti = context["ti"]
        with _as_airflow_errors():
            place = RayJobsHook(self.ray_conn_id).get_place()
            spec = self.build_spec(ti, place)
            if not self.deferrable:
                return self._follow(spec, place.cluster, ti)
            result, supervisor = run_sync(self._submit(spec, place.cluster, ti))
        if result is not None:
            return result.reference().to_json()
        self._push_link(ti, supervisor.rundir)
        self.defer(
            trigger=RayStepTrigger(supervisor.rundir.uri, self.ray_conn_id, supervisor.since_attempt or 0),
            method_name="execute_complete",
        )

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        if event["status"] != "success":
            _fail(event)
        result: dict[str, Any] = event["result"]
        return result

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """A trigger that broke leaves a job that nobody follows: cancel it; a retry goes on from its last checkpoint."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        finally:
            if next_method == _TRIGGER_FAILED:
                place = RayJobsHook(self.ray_conn_id).get_place()
                self._cancel(RunDir.of(self.build_spec(context["ti"], place)), place.cluster)

    def on_kill(self) -> None:
        """In synchronous mode: cancel the run when its task is over, not when it is only to run again."""
        if self._following is None:
            return
        supervisor, ti = self._following
        if over(state := task_state(ti)):
            self.log.info("The task is %s: cancelling", state)
            supervisor.give_up()
            self._cancel(supervisor.rundir, supervisor.cluster)

    def build_spec(self, ti: Any, place: Place) -> StepSpec:
        """The validated spec of this task instance, with the run's name, out of the rendered fields."""
        spec = self._load() if isinstance(self.spec, (str, os.PathLike)) else self._parse(self.spec)
        if not isinstance(spec, self.spec_class):
            raise SpecError(f"kind: given {spec.kind!r}; {type(self).__name__} accepts {self.spec_class.__name__}")
        index = str(ti.map_index) if ti.map_index is not None and ti.map_index >= 0 else ""
        derived = run_name(place.namespace, ti.dag_id, ti.run_id, ti.task_id, index)
        return spec.with_name(self.run_name or spec.run_config.name or derived, self.storage_path or place.storage_path)

    def _load(self) -> StepSpec:
        path = Path(self.spec)
        return load_spec(path if path.is_absolute() or self.dag is None else Path(self.dag.folder, path))

    def _parse(self, data: Any) -> StepSpec:
        if isinstance(data, Mapping):
            data = {name: _reference(name, value) if name in _REFERENCES else value for name, value in data.items()}
            data.setdefault("kind", self.spec_class.model_fields["kind"].default)
        return parse_spec(data)

    async def _submit(self, spec: StepSpec, cluster: Cluster, ti: Any) -> tuple[AnyResult | None, Supervisor]:
        rundir = await prepare(spec, cluster)
        self.log.info("Run %s", rundir.uri)
        # deferred, the trigger tells everything from the start
        listener = teller(self.log, "state") if self.deferrable else teller(self.log)
        supervisor = Supervisor(rundir, cluster, listener=listener, metadata=metadata(ti))
        return await supervisor.submit(), supervisor

    def _follow(self, spec: StepSpec, cluster: Cluster, ti: Any) -> dict[str, Any]:
        """Synchronous mode: the same run, followed by this process."""
        result, supervisor = run_sync(self._submit(spec, cluster, ti))
        if result is None:
            self._push_link(ti, supervisor.rundir)
            self._following = (supervisor, ti)
            try:
                result = run_sync(supervisor.run())
            except AirflowTaskTimeout:
                self._cancel(supervisor.rundir, cluster)
                raise
        return result.reference().to_json()

    def _push_link(self, ti: Any, rundir: RunDir) -> None:
        """Airflow takes links at the end of a task; this shows the job's while it runs."""
        link = RayJobLink()
        if attempt := rundir.latest():
            ti.xcom_push(key=link.xcom_key, value=link.url(rundir.receipt(attempt)))

    def _cancel(self, rundir: RunDir, cluster: Cluster) -> None:
        self.log.info("%s: %s", rundir.uri, cancel(rundir, cluster))


class RayTrainOperator(RayStepOperator):
    """Distributed training (`plugin_core.TrainSpec`, whose fields are the keyword arguments; None: the spec's default).

    XGBoost's `params` are called `xgboost_params` here, since every Airflow operator has `params` of its own. Returns the
    train result; `checkpoint=train.output` hands its checkpoint to the next step.
    """

    spec_class = TrainSpec

    def __init__(
        self,
        *,
        framework: str | None = None,
        train_loop_per_worker: str | Callable[..., Any] | None = None,
        train_loop_config: dict[str, Any] | None = None,
        scaling_config: dict[str, Any] | None = None,
        datasets: dict[str, Any] | None = None,
        torch_config: dict[str, Any] | None = None,
        xgboost_params: dict[str, Any] | None = None,
        label_column: str | None = None,
        num_boost_round: int | None = None,
        resume_from: Any = None,
        **kwargs: Any,
    ):
        fields = {
            "framework": framework,
            "train_loop_per_worker": train_loop_per_worker,
            "train_loop_config": train_loop_config,
            "scaling_config": scaling_config,
            "datasets": datasets,
            "torch_config": torch_config,
            "params": xgboost_params,
            "label_column": label_column,
            "num_boost_round": num_boost_round,
            "resume_from": resume_from,
        }
        super().__init__(fields=fields, **kwargs)


class RayEvaluateOperator(RayStepOperator):
    """A user function on a checkpoint (`plugin_core.EvaluateSpec`); the result's `passed` says if its thresholds held."""

    spec_class = EvaluateSpec

    def __init__(
        self,
        *,
        evaluate: str | Callable[..., Any] | None = None,
        checkpoint: Any = None,
        dataset: Any = None,
        config: dict[str, Any] | None = None,
        thresholds: dict[str, Any] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        **kwargs: Any,
    ):
        fields = {
            "evaluate": evaluate,
            "checkpoint": checkpoint,
            "dataset": dataset,
            "config": config,
            "thresholds": thresholds,
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
        }
        super().__init__(fields=fields, **kwargs)


class RayBatchInferOperator(RayStepOperator):
    """A predictor class over a dataset, to parquet (`plugin_core.BatchInferSpec`)."""

    spec_class = BatchInferSpec

    def __init__(
        self,
        *,
        predictor: str | Callable[..., Any] | None = None,
        checkpoint: Any = None,
        dataset: Any = None,
        output_path: str | None = None,
        config: dict[str, Any] | None = None,
        batch_size: int | None = None,
        concurrency: int | tuple[int, int] | None = None,
        num_cpus: float | None = None,
        num_gpus: float | None = None,
        **kwargs: Any,
    ):
        fields = {
            "predictor": predictor,
            "checkpoint": checkpoint,
            "dataset": dataset,
            "output_path": output_path,
            "config": config,
            "batch_size": batch_size,
            "concurrency": concurrency,
            "num_cpus": num_cpus,
            "num_gpus": num_gpus,
        }
        super().__init__(fields=fields, **kwargs)


_REFERENCES = ("checkpoint", "resume_from")


def _reference(name: str, value: Any) -> Any:
    """Jinja without native rendering turns a result's dict into its text."""
    if not (isinstance(value, str) and value.lstrip().startswith("{")):
        return value
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError) as exc:
        raise SpecError(f"{name}: given {value[:80]!r}; accepted is a train task's output, or a URI") from exc


@contextmanager
def _as_airflow_errors() -> Iterator[None]:
    try:
        yield
    except RayTrainWorkflowsError as exc:
        failed = error_payload(exc)
    else:
        return
    _fail(failed)


def _fail(failed: Mapping[str, Any]) -> NoReturn:
    """Raise what Airflow retries, or does not; the user's own traceback stands last in the task's log."""
    text = f"{failed['error']}: {failed['message']}"
    if failed["details"]:
        text = f"{text}\n\n{failed['details']}"
    raise (AirflowException if failed["retryable"] else AirflowFailException)(text)
