"""Errors of the product.

    RayTrainWorkflowsError
    ├── SpecError                 raised before submission; nothing ran; never retried
    │   ├── InfeasibleError       requests more than the cluster will ever have
    │   ├── PayloadError          a function cannot be imported or pickled
    │   ├── SpecChangedError      the run's name is already used for a different spec
    │   ├── ClusterRefusedError   the cluster rejects our requests (bad token, no Jobs API)
    │   ├── PromotionRefusedError the evaluation did not pass
    │   └── AliasMovedError       a model's alias points to an unexpected version
    ├── ClusterUnreachableError   the cluster does not answer; retryable
    │   └── ClusterQueuedError    the cluster waits in a queue for its turn
    ├── StorageError              the run directory cannot be read or written; retryable
    └── StepError                 raised after submission
        ├── UserCodeError         the user's function raised; retried only if `failure_policy` says so
        │   └── NanLossError      a reported loss is not finite, and `failure_policy` watches it
        ├── InfrastructureError   a process, node or connection was lost; retryable
        │   ├── HangError         the training made no progress
        │   └── DamagedCheckpointError  the checkpoint that the workers resume from does not match its manifest
        ├── StorageFullError      no space left; the last complete checkpoint is kept; retryable
        ├── StepTimeoutError      `timeout_s` or `scheduling_timeout_s` expired
        ├── StepCancelledError    the run was cancelled
        ├── LeaseHeldError        another retraining of the same model is running; retryable
        ├── RestartError          `failure_policy` ended the attempt for the next one; retryable
        ├── GaveUpError           `failure_policy` ended the training for good
        └── FencedError           a later attempt owns the run

Each class defines whether the engine should retry (`retryable`), the exit code of the driver and the CLI (`exit_code`),
and the outcome recorded for the attempt (`outcome`). Whoever raises an error words it; nothing here knows about runs.
"""

from __future__ import annotations

from plugin_core.errors.plain_text import plain


class RayTrainWorkflowsError(Exception):
    """`message`: what went wrong, in one line. `details`: the full traceback, if known."""

    retryable: bool = False
    exit_code: int = 1
    outcome: str = "error"
    #: what ended the attempt, as `failure_policy` names it (see `specs.failure_policy`); "" if that is unknown
    cause: str = ""

    def __init__(self, message: str = "", details: str = ""):
        super().__init__(message)  # the message alone: OSError takes a second argument for the text of an errno
        self.message = message or type(self).__name__
        self.details = details

    def __str__(self) -> str:
        return self.message


class SpecError(RayTrainWorkflowsError, ValueError):
    """`sentences`: one per invalid field, if several are invalid."""

    exit_code = 2
    outcome = "spec_error"
    sentences: tuple[str, ...] = ()


class InfeasibleError(SpecError):
    outcome = "infeasible"


class PayloadError(SpecError):
    pass


class SpecChangedError(SpecError):
    """`code_alone`: the fields and function names match, and only the functions' code differs."""

    def __init__(self, message: str, fields: tuple[str, ...] = (), code_alone: bool = False):
        super().__init__(message)
        self.fields = fields
        self.code_alone = code_alone


class ClusterRefusedError(SpecError):
    pass


class PromotionRefusedError(SpecError):
    pass


class AliasMovedError(SpecError):
    pass


class ClusterUnreachableError(RayTrainWorkflowsError, ConnectionError):
    retryable = True
    exit_code = 2


class ClusterQueuedError(ClusterUnreachableError):
    """The cluster waits in a queue for its turn: nothing runs there, and nothing has failed."""


#: Errors that a request to a cluster can raise; neither says anything about the state of a job.
CLUSTER_ERRORS = (ClusterUnreachableError, ClusterRefusedError)


class StorageError(RayTrainWorkflowsError, OSError):
    retryable = True
    exit_code = 11
    outcome = "infrastructure"
    cause = "storage"


class StepError(RayTrainWorkflowsError, RuntimeError):
    """A step failed after submission."""

    exit_code = 12


class UserCodeError(StepError):
    exit_code = 10
    outcome = "user_error"
    cause = "user_code"


class NanLossError(UserCodeError):
    cause = "nan_loss"


class InfrastructureError(StepError):
    retryable = True
    exit_code = 11
    outcome = "infrastructure"
    cause = "infrastructure"


class HangError(InfrastructureError):
    cause = "hang"


class DamagedCheckpointError(InfrastructureError):
    """`checkpoint`: its name; the next attempt resumes from the one before it."""

    cause = "storage"

    def __init__(self, message: str = "", details: str = "", checkpoint: str = ""):
        super().__init__(message, details)
        self.checkpoint = checkpoint


class StorageFullError(StepError):
    retryable = True
    exit_code = 17
    outcome = "storage_full"
    cause = "storage"


class StepTimeoutError(StepError):
    exit_code = 13
    outcome = "timeout"


class StepCancelledError(StepError):
    exit_code = 14
    outcome = "cancelled"


class LeaseHeldError(StepError):
    retryable = True
    exit_code = 18
    outcome = "lease_held"


class FencedError(StepError):
    exit_code = 15
    outcome = "fenced"


class RestartError(StepError):
    retryable = True
    exit_code = 20
    outcome = "restart"


class GaveUpError(StepError):
    exit_code = 21
    outcome = "gave_up"


#: The driver found no receipt under its run URI: the orchestrator and the cluster do not share storage. With nowhere to
#: record this, the driver reports it through its exit code only.
EXIT_NOT_SHARED = 16
#: The data handed over to the job is gone, so its driver cannot reach the storage either.
EXIT_NOT_HANDED_OVER = 19
#: The outcome of an attempt whose driver received SIGTERM. The supervisor uses the job's status in Ray to tell a stopped
#: job from a lost node.
TERMINATED = "terminated"
#: The cause of a StepTimeoutError for resources that were not available in time: another cluster may have them.
NO_RESOURCES = "no_resources"
#: The outcome of an attempt whose job the cluster rejected: nothing ran, and a different spec may still use the run's name.
REFUSED = "refused"

_BY_OUTCOME: dict[str, type[RayTrainWorkflowsError]] = {
    cls.outcome: cls
    for cls in (
        InfeasibleError,
        UserCodeError,
        InfrastructureError,
        StorageFullError,
        StepTimeoutError,
        StepCancelledError,
        LeaseHeldError,
        FencedError,
        RestartError,
        GaveUpError,
    )
}


def from_outcome(outcome: str, message: str, details: str = "", cause: str = "") -> RayTrainWorkflowsError:
    """Rebuild the exception from the outcome that an attempt recorded."""
    cls = _BY_OUTCOME.get(outcome, SpecError if outcome in (SpecError.outcome, REFUSED) else StepError)
    error = cls(plain(message), plain(details))
    error.cause = plain(cause) or cls.cause
    return error
