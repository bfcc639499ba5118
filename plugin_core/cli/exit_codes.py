"""The exit codes of `raytrain`. `docs/cli.md` and `raytrain --help` show this table; a test compares it with the errors."""

from __future__ import annotations

#: Code → the errors that end with it, and what it means.
EXIT_CODES: dict[int, tuple[str, str]] = {
    0: ("", "success"),
    1: ("any other error", "a mistake in raytrain itself; please report it"),
    2: (
        "SpecError, InfeasibleError, PayloadError, SpecChangedError, ClusterRefusedError, PromotionRefusedError,"
        " AliasMovedError, ClusterUnreachableError, ClusterQueuedError",
        "bad input, a run without a result yet, or a cluster that does not answer; nothing was submitted."
        " `raytrain doctor`: a check failed",
    ),
    10: ("UserCodeError, NanLossError", "your function raised, or a loss that is watched is not finite"),
    11: (
        "InfrastructureError, HangError, DamagedCheckpointError, StorageError",
        "a process, node or connection was lost, or storage failed or damaged a checkpoint; try again",
    ),
    12: ("StepError", "the step failed for another reason"),
    13: ("StepTimeoutError", "limits.timeout_s or limits.scheduling_timeout_s expired"),
    14: ("StepCancelledError", "the run was cancelled"),
    15: ("FencedError", "a later attempt owns the run"),
    17: ("StorageFullError", "no space is left on the storage"),
    18: ("LeaseHeldError", "another retraining of the same model is running"),
    20: ("RestartError", "failure_policy ended the attempt for another one, and nobody follows the run; call it again"),
    21: ("GaveUpError", "failure_policy gave the training up"),
    22: ("", "`raytrain rehearse`: the training forgets something when it resumes"),
    23: ("", "`raytrain rehearse`: the training cannot be compared"),
    130: ("", "Ctrl-C; a run goes on, and the same command attaches to it again"),
}


def epilog() -> str:
    """The table as the end of `raytrain --help`: one paragraph a line, as typer shows them."""
    return "\n\n".join(["Exit codes:", *(f"{code}  {meaning}" for code, (_, meaning) in EXIT_CODES.items())])
