"""The context that a step runs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from plugin_core.runs.attempts import Phase
from plugin_core.runs.directory import RunDir
from plugin_core.specs import StepSpec, functions
from plugin_core.specs.parts import all_functions, is_name_of_value
from plugin_core.specs.results import RunRef


@dataclass(frozen=True)
class StepContext:
    """A step's spec, run and functions, and callbacks to report its progress."""

    spec: StepSpec
    rundir: RunDir
    attempt: int
    payload: dict[str, Any]
    set_phase: Callable[[str], None]
    #: records in the timeline what begins now
    mark: Callable[[str], None] = lambda what: None
    #: the phases that the attempt's driver has entered so far
    phases: Callable[[], list[Phase]] = list
    #: reports the links to the tracking runs, by tracker
    set_links: Callable[[dict[str, str]], None] = lambda links: None
    #: for rank 0 and for the others: variables by which a tracker's native calls find its run, or none
    worker_environment: tuple[dict[str, str], dict[str, str]] = ({}, {})
    #: whether the process and its Ray job end with the step: Ray then frees everything that the job holds
    own_job: bool = False
    #: the most of the cluster that the step may use, next to others that run there (None: all)
    room: dict[str, float] | None = None

    @property
    def run(self) -> RunRef:
        from plugin_core.specs.results import RunRef

        return RunRef(uri=self.rundir.uri, name=self.rundir.name, attempt=self.attempt)

    def child(self, name: str, spec: StepSpec, field: str) -> StepContext:
        """The context of a child run, given by a field of this run's spec. Creates the child run if needed.

        Its functions are this run's: those of the field, or those of a search space that its spec names instead.
        """
        inside = {
            key.removeprefix(f"{field}."): value for key, value in self.payload.items() if key.startswith(f"{field}.")
        }
        by_name = {name: self.payload[key] for key, name in self.spec.more_functions().items() if key in self.payload}
        for key, value in all_functions(spec).items():
            if isinstance(value, str) and value in by_name:
                inside[key] = by_name[value]
            elif isinstance(value, str) and not is_name_of_value(value):
                inside.pop(key, None)
        rundir = self.rundir.child(name)
        rundir.write_child_spec(spec)
        return replace(self, spec=spec, rundir=rundir, payload=inside)

    def function(self, field: str) -> Callable[..., Any]:
        """The user's function of a spec field: from the payload, or imported."""
        if field in self.payload:
            found: Callable[..., Any] = self.payload[field]
            return found
        value: Any = self.spec
        for part in field.split("."):
            match value:
                case dict():
                    value = value[part]
                case list():
                    value = value[int(part)]
                case _:
                    value = getattr(value, part)
        return value if callable(value) else functions.import_function(field, value)
