"""The base of all operators. Steps are implemented in `plugin_core`; this adds what is specific to Airflow: connection,
templates, run name, deferral, cancel, outlets."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowTaskTimeout,
    BaseOperator,
    BaseOperatorLink,
)
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_provider.arguments import check_arguments, is_rendered, noted_place
from airflow_provider.assets import announce
from airflow_provider.common import (
    RUN_KEY,
    SHARED_KEY,
    error_payload,
    metadata,
    over,
    request_of,
    task_state,
    without_triggerer,
    writer,
)
from airflow_provider.hooks import DEFAULT_CONN_ID, ConnIds, Place, RayJobsHook
from airflow_provider.links import RayJobLink, RayTrackingLink
from airflow_provider.stored import forget, remember
from airflow_provider.triggers import RayStepTrigger
from plugin_core.engine import (
    Cluster,
    RayTrainWorkflowsError,
    RunDir,
    SpecError,
    StepResult,
    StepSpec,
    Supervisor,
    Tracker,
    as_spec,
    cancel,
    check_size,
    effective_time_of,
    in_thread,
    newest_run,
    prepare,
    run_name,
    run_sync,
    safe_link,
)

#: The `next_method` with which Airflow resumes a deferred task whose trigger failed.
_TRIGGER_FAILED = "__fail__"


class RayStepOperator(BaseOperator):
    """A step on a Ray cluster.

    :param spec: the whole step, instead of its fields: a spec, a dict, or the path of a YAML or JSON file (relative to the
        DAG file).
    :param ray_conn_id: a connection of type `rayjobs`, or a list of them in the order of preference (see `RayJobsHook`).
        None, or a missing `ray_default`: the embedded local cluster.
    :param storage_path: where the run is stored if the spec does not say; default: the connection's, then `RAY_STORAGE`,
        then `~/ray_results`.
    :param run_name: the run's name, under which a retry resumes it; default: the spec's `run_config.name`, then one built
        from the DAG, run and task ids.
    :param deferrable: release the worker slot while the Ray job runs.
    :param run_config, limits, runtime_env, tracking: the spec's fields of the same names.

    Every string of the spec is templated; functions are left unchanged. A spec without templates and without outputs of
    other tasks is checked when the DAG file is parsed.
    """

    template_fields: Sequence[str] = ("spec", "run_name", "storage_path", "ray_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json"}
    operator_extra_links = (RayJobLink(), RayTrackingLink())
    ui_color = "#d5ecfa"
    spec_class: ClassVar[type[StepSpec]] = StepSpec

    def __init__(
        self,
        *,
        spec: Any = None,
        ray_conn_id: ConnIds = DEFAULT_CONN_ID,
        storage_path: str | None = None,
        run_name: str | None = None,
        deferrable: bool = True,
        run_config: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
        runtime_env: dict[str, Any] | None = None,
        tracking: Any = None,
        fields: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        check_arguments(type(self), kwargs)
        super().__init__(**kwargs)
        shared = {"run_config": run_config, "limits": limits, "runtime_env": runtime_env, "tracking": tracking}
        all_fields = {**(fields or {}), **shared}
        for name, value in (("spec", spec), *all_fields.items()):
            check_size(value, name)  # Airflow traverses it repeatedly
        given = {name: _as_dict(value) for name, value in all_fields.items() if value is not None}
        if spec is not None and given:
            raise SpecError(f"spec: got together with {', '.join(sorted(given))}; expected one or the other")
        self.spec = given if spec is None else _as_dict(spec)
        self.ray_conn_id = ray_conn_id
        self.storage_path = storage_path
        self.run_name = run_name
        self.deferrable = deferrable
        self._following: tuple[Supervisor, Any] | None = None
        self._killed_early = False
        #: the pages that this process knows, by the key of their link
        self.pages: dict[str, str] = {}
        with noted_place(self.task_id):
            self._check_spec()

    def _check_spec(self) -> None:
        """While the DAG file is parsed: raise SpecError if the spec is invalid for every DAG run. Makes no connections
        and imports nothing."""
        mapped = getattr(self, "_BaseOperator__from_mapped", False)  # then this is a task's process, which checks it itself
        if mapped or not is_rendered(self.spec):
            return
        if isinstance(self.spec, (str, os.PathLike)) and not Path(self._folder or ".", self.spec).is_file():
            return  # it may exist where the task runs
        as_spec(self.spec, self.spec_class, self._folder)

    @property
    def _folder(self) -> str | None:
        """The DAG file's folder, which a spec file is relative to."""
        return self.dag.folder if self.has_dag() else None

    def render_template(self, content: Any, *args: Any, **kwargs: Any) -> Any:
        """Skip functions and classes in the spec, whatever attributes they have."""
        if isinstance(content, type) or inspect.isroutine(content):
            return content
        return super().render_template(content, *args, **kwargs)

    def execute(self, context: Any) -> dict[str, Any]:
        ti = context["ti"]
        with as_airflow_errors():
            place = RayJobsHook(self.ray_conn_id, of=ti).get_place()
            log = writer(self.log)
            rundir = run_sync(prepare(self.build_spec(ti, place), place.cluster, request_of(ti), log))
            self._remember(context, rundir, place)
            wanted = functools.partial(in_thread, self._lives, ti)
            supervisor = Supervisor(rundir, place.cluster, log=log, metadata=metadata(ti), wanted=wanted)
            self._following = (supervisor, ti)
            # a task that was marked until now may have left the listener no run to find
            if self._killed_early or not self._lives(ti):
                self.on_kill()
            result = run_sync(supervisor.submit())
            if result is None:
                self._show_job(ti, rundir, place)
                if not self.deferrable:
                    result = self._follow(supervisor)
            if result is not None:
                return self._hand_over(context, result.reference().to_json())
        self._following = None  # from here on the trigger cancels
        if warning := without_triggerer():
            self.log.warning("deferrable: %s", warning)
        old_cancels = sorted(rundir.old_cancels or ())
        self.defer(
            trigger=RayStepTrigger(rundir.uri, self.ray_conn_id, supervisor.since_attempt or 0, old_cancels),
            method_name="execute_complete",
            kwargs={"pages": self.pages},
        )

    def execute_complete(self, context: Any, event: dict[str, Any], pages: dict[str, str] | None = None) -> dict[str, Any]:
        """`pages`: the pages that the process that deferred the task knew."""
        self.pages |= pages or {}
        if event["status"] != "success":
            _fail(event)
        with as_airflow_errors():
            return self._hand_over(context, event["result"])

    def dry_run(self) -> None:
        """Log what would run: the validated spec, cluster and run directory. Submits and writes nothing."""
        ti = SimpleNamespace(dag_id=self.dag_id, run_id="dry_run", task_id=self.task_id, map_index=-1)
        with as_airflow_errors():
            place = RayJobsHook(self.ray_conn_id, of=ti).get_place()
            spec = self.build_spec(ti, place)
            self.log.info(
                "On %s, run directory %s:\n%s", place.cluster, RunDir.of(spec).uri, json.dumps(spec.to_json(), indent=1)
            )

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """If the trigger failed, nobody follows the job: cancel it. A retry resumes from its last checkpoint."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        finally:
            if next_method == _TRIGGER_FAILED:
                place = RayJobsHook(self.ray_conn_id, of=context["ti"]).get_place()
                rundir = newest_run(self.build_spec(context["ti"], place))
                self._show_job(context["ti"], rundir, place)
                self._cancel(rundir, place.cluster)

    def on_kill(self) -> None:
        """Cancel the run if its task is over, but not if the task will run again."""
        if self._following is None:
            self._killed_early = True  # `execute` calls this again once there is something to cancel
            return
        supervisor, ti = self._following
        state = task_state(ti)
        last_try = state == "running" and ti.try_number > ti.max_tries
        if not over(state) and not last_try:
            self.log.info("The task is %s: its Ray job continues", state)
            return
        self.log.info("The task is %s: cancelling", state)
        supervisor.give_up()
        self._cancel(supervisor.rundir, supervisor.cluster)

    def build_spec(self, ti: Any, place: Place) -> StepSpec:
        """Build this task instance's validated spec, with the run's name, from the rendered fields."""
        data = self.spec
        if isinstance(data, Mapping):
            data = {name: as_reference(name, value) if name in _REFERENCES else value for name, value in data.items()}
        spec = as_spec(data, self.spec_class, self._folder)
        index = str(ti.map_index) if ti.map_index is not None and ti.map_index >= 0 else ""
        derived = run_name(place.namespace, ti.dag_id, ti.run_id, ti.task_id, index)
        return spec.with_name(self.run_name or spec.run_config.name or derived, self.storage_path or place.storage_path)

    def _lives(self, ti: Any) -> bool:
        """Whether the task still wants its run. Airflow's servers cancel only attempts that they see; whoever claims one
        must therefore ask afterwards."""
        try:
            return not over(task_state(ti))
        except AirflowRuntimeError as exc:
            self.log.warning("could not read the task's state, will retry: %s", exc)
            return False

    def _follow(self, supervisor: Supervisor) -> StepResult:
        """Synchronous mode: this process follows the run."""
        try:
            return run_sync(supervisor.run())
        except AirflowTaskTimeout:
            self._cancel(supervisor.rundir, supervisor.cluster)
            raise

    def _remember(self, context: Any, rundir: RunDir, place: Place) -> None:
        """Before the submit: store what the `listener` needs to cancel the run without this task or trigger, and to end a
        cluster that the steps of the DAG run share."""
        remember(context, RUN_KEY, {"uri": rundir.uri, "ray_conn_id": self.ray_conn_id})
        if place.cluster.keep_every_s is not None:
            remember(context, SHARED_KEY, self.ray_conn_id)

    def _show_job(self, ti: Any, rundir: RunDir, place: Place) -> None:
        receipt = rundir.receipt(rundir.latest())
        if receipt is not None and (url := receipt.job_url(place.dashboard_url)):
            self._show(ti, RayJobLink(), url)

    def _show(self, ti: Any, link: BaseOperatorLink, url: str) -> None:
        """Show a link while the task runs; Airflow collects links only at the end of its process."""
        self.pages[link.xcom_key] = url
        ti.xcom_push(key=link.xcom_key, value=url)

    def _hand_over(self, context: Any, result: dict[str, Any]) -> dict[str, Any]:
        """The last thing a task does: clearing it after this requests a new generation."""
        if pages := [page for url in result.get("tracking", {}).values() if (page := safe_link(url))]:
            self._show(context["ti"], RayTrackingLink(), pages[0])
        rundir = RunDir.at(result["run"]["uri"])
        if told := effective_time_of(rundir):
            context["ti"].xcom_push(key="effective_training_time", value=told)
        announce(self.outlets, context.get("outlet_events"), result)
        rundir.deliver(request_of(context["ti"]))
        forget(context, RUN_KEY)  # nothing left to cancel: the end of the DAG run skips this task
        return result

    def _cancel(self, rundir: RunDir, cluster: Cluster) -> None:
        self.log.info("%s: %s", rundir.uri, cancel(rundir, cluster))


def _as_dict(value: Any) -> Any:
    """Convert a spec to a dict, so that its strings are templated and Airflow can serialise and compare it."""
    if isinstance(value, list):
        return [_as_dict(item) for item in value]
    if isinstance(value, Tracker):
        return value.model_dump()
    if not isinstance(value, StepSpec):
        return value
    kind = type(value).model_fields.get("kind")
    return {**value.model_dump(exclude_unset=True), **({"kind": kind.default} if kind else {})}


_REFERENCES = ("checkpoint", "resume_from", "compare_to")


def as_reference(name: str, value: Any) -> Any:
    """Parse a result's dict back from the text that non-native Jinja rendering produces, also in the field `search`."""
    if isinstance(value, Mapping) and "search" in value:
        return {**value, "search": as_reference(f"{name}.search", value["search"])}
    if not (isinstance(value, str) and value.lstrip().startswith("{")):
        return value
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError) as exc:
        raise SpecError(f"{name}: got {value[:80]!r}; expected a train task's output, or a URI") from exc


@contextmanager
def as_airflow_errors() -> Iterator[None]:
    """Convert our errors to exceptions that Airflow retries or does not retry."""
    try:
        yield
    except RayTrainWorkflowsError as exc:
        failed = error_payload(exc)
    else:
        return
    _fail(failed)


def _fail(failed: Mapping[str, Any]) -> NoReturn:
    """Raise an exception that Airflow retries or does not retry; the user's traceback comes last in the task's log."""
    text = f"{failed['error']}: {failed['message']}"
    if failed["details"]:
        text = f"{text}\n\n{failed['details']}"
    raise (AirflowException if failed["retryable"] else AirflowFailException)(text)
