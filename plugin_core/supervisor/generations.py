"""Which run directory a request means: the one of the run that it goes on with, or that of a new generation.

An engine's task may be started again by itself (a retry) or by a person (a clear, a re-run). `request` is the engine's mark
of that: equal for all retries of one request, another one as soon as a person asks again. So

* a retry, and a person's request after a failure, go on with the same run;
* a person's request after the result was handed over begins a new generation, `<name>.gN`; the earlier ones are kept.

What changed since the run began decides too. Another spec is another training: a person's request begins a new generation
with it, a retry is refused with the names of the fields. Code alone may change, since it is mended after a failure: a
person's request goes on from the last checkpoint with the new code, a retry with the code that the run began with, unless
that code is what failed.
"""

from __future__ import annotations

from plugin_core.errors import SpecChangedError, SpecError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import StepSpec
from plugin_core.storage import proof


def newest_run(spec: StepSpec) -> RunDir:
    """The newest generation there is of the spec's run; the first where there is none.

    Generations are consecutive, so a search by doubling and halving finds the end in O(log n) reads, and in one read for
    a run that has only its first.
    """
    there, absent = 1, 2
    while _is_there(spec, absent):
        there, absent = absent, 2 * absent
    while absent - there > 1:
        middle = (there + absent) // 2
        if _is_there(spec, middle):
            there = middle
        else:
            absent = middle
    return RunDir.of(spec, there)


def _is_there(spec: StepSpec, generation: int) -> bool:
    """A run that a user gave the name of our generation is none of them."""
    return RunDir.of(spec, generation).is_of(spec.run_config.name or "")


def lay_down(spec: StepSpec, request: str | None, current: RunDir | None = None) -> tuple[RunDir, str]:
    """Keep the spec in the run directory that the request means; and a remark where that needs one.

    Without a request: the run of that name as it is. `current`: what `newest` found, for a caller that has asked already.
    Blocks. Raises SpecChangedError and PayloadError like `RunDir.write_spec`, SpecError where the storage can hold no runs.
    """
    proof.ensure(RunDir.of(spec).location.parent)
    if request is None:
        rundir = RunDir.of(spec)
        rundir.write_spec(spec)
        return rundir, ""
    rundir, remark = _chosen(spec, current or newest_run(spec), request)
    rundir.ask(request)
    return rundir, remark


def _chosen(spec: StepSpec, rundir: RunDir, request: str) -> tuple[RunDir, str]:
    before = rundir.request()
    by_a_person = before.asked not in ("", request)
    if by_a_person and before.delivered:
        return _next(spec, rundir, "the result of the one before was handed over, and the step is asked for again")
    try:
        rundir.write_spec(spec)
    except SpecChangedError as exc:
        if by_a_person and (not exc.code_alone or rundir.result() is not None):
            return _next(spec, rundir, f"the step is asked for again with another {', '.join(exc.fields)}")
        if not exc.code_alone:
            raise
        # an attempt that did not record its end may live, and the code that it runs is the run's
        end = rundir.end(rundir.latest())
        if end is not None and rundir.result() is None and (by_a_person or end.outcome == UserCodeError.outcome):
            rundir.write_spec(spec, replace_code=True)
            return rundir, "the code changed since this run began; it goes on with the new code"
        return rundir, "the code changed since this run began; it goes on with the code that it began with"
    return rundir, ""


def _next(spec: StepSpec, rundir: RunDir, why: str) -> tuple[RunDir, str]:
    fresh = RunDir.of(spec, rundir.generation + 1)
    if fresh.exists() and not fresh.is_of(spec.run_config.name or ""):
        raise SpecError(
            f"run_config.name: got {spec.run_config.name!r}, whose generation {fresh.generation} would be {fresh.uri},"
            " which is another run; expected another name"
        )
    fresh.write_spec(spec)
    return fresh, f"generation {fresh.generation} of the run: {why}"
