"""Maps a request to a run directory: that of the run it continues, or that of a new generation.

An engine's task is restarted by the engine (a retry) or by a person (a clear, a re-run). `request` is the engine's id for
this: the same for all retries of one request, a new one when a person asks again. So

* a retry, and a person's request after a failure, continue the same run;
* a person's request after the result was delivered starts a new generation, `<name>.gN`; earlier ones are kept.

A request is a person's if the run does not know it yet. Two runs of an engine may share a run by its name: it knows both's.

Changes since the run started also matter. A different spec is a different training: a person's request starts a new
generation with it, a retry is rejected with the names of the changed fields. Code alone may change, since people fix it
after a failure: a person's request continues from the last checkpoint with the new code, a retry with the run's original
code, unless that code is what failed.
"""

from __future__ import annotations

from plugin_core.errors import SpecChangedError, SpecError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import StepSpec
from plugin_core.storage import proof


def newest_run(spec: StepSpec) -> RunDir:
    """Return the newest generation of the spec's run, or the first if none exists.

    Generations are consecutive, so galloping search finds the newest in O(log n) reads; one read if there is only the
    first.
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
    """Whether the generation exists. A user's own run that happens to have the generation's name does not count."""
    return RunDir.of(spec, generation).is_of(spec.run_config.name or "")


def lay_down(spec: StepSpec, request: str | None, current: RunDir | None = None) -> tuple[RunDir, str]:
    """Write the spec to the run directory that the request maps to; return it with a remark for the user, or "".

    Without a request: the run of that name as it is. `current`: the result of `newest_run`, if the caller has it already.
    Blocks. Raises SpecChangedError and PayloadError like `RunDir.write_spec`, SpecError if the storage cannot hold runs.
    """
    proof.ensure(RunDir.of(spec).location.parent)
    found = RunDir.of(spec) if request is None else current or newest_run(spec)
    # before anything else: this call obeys every cancel that comes from now on
    old_cancels = found.intent().whole_run
    if request is None:
        found.write_spec(spec)
        rundir, remark = found, ""
    else:
        rundir, remark = _chosen(spec, found, request)
        rundir.ask(request)
    rundir.old_cancels = old_cancels if rundir is found else frozenset()
    return rundir, remark


def _chosen(spec: StepSpec, rundir: RunDir, request: str) -> tuple[RunDir, str]:
    before = rundir.request()
    by_a_person = before.is_new(request)
    if by_a_person and before.delivered:
        return _next(spec, rundir, "the step is started again after its result was returned")
    try:
        rundir.write_spec(spec)
    except SpecChangedError as exc:
        if by_a_person and (not exc.code_alone or rundir.result() is not None):
            return _next(spec, rundir, f"the step is started again with changes in {', '.join(exc.fields)}")
        if not exc.code_alone:
            raise
        # an attempt that recorded no end may be alive, and it runs the run's code
        end = rundir.end(rundir.latest())
        if end is not None and rundir.result() is None and (by_a_person or end.outcome == UserCodeError.outcome):
            rundir.write_spec(spec, replace_code=True)
            return rundir, "the code changed since this run started; continuing with the new code"
        return rundir, "the code changed since this run started; continuing with the original code"
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
