"""Errors of the product.

    RayTrainWorkflowsError
    ├── SpecError                 before the submit; nothing ran; never retried
    │   ├── InfeasibleError       asks for more than the cluster will ever have
    │   ├── PayloadError          a function cannot be imported or sent
    │   ├── SpecChangedError      the run's name already stands for another spec
    │   ├── ClusterRefusedError   the cluster answers, but not to us (token, no Jobs API)
    │   ├── PromotionRefusedError the evaluation did not pass
    │   └── AliasMovedError       a model's alias stands for another version than expected
    ├── ClusterUnreachableError   no answer from the cluster; retryable
    ├── StorageError              the run directory cannot be read or written; retryable
    └── StepError                 after the submit
        ├── UserCodeError         the user's function raised; never retried by us
        ├── InfrastructureError   a process, node or connection was lost; retryable
        ├── StorageFullError      no space left; the last complete checkpoint is kept
        ├── StepTimeoutError      `timeout_s` or `scheduling_timeout_s` is over
        ├── StepCancelledError    cancel was asked for
        ├── LeaseHeldError        another retraining of the model runs
        └── FencedError           a later attempt owns the run

Each class says whether the engine should retry (`retryable`), how the driver and the CLI exit (`exit_code`), and the
word under which an attempt's end is recorded (`outcome`).
"""

from __future__ import annotations

from plugin_core.errors.plain_text import plain


class RayTrainWorkflowsError(Exception):
    retryable: bool = False
    exit_code: int = 1
    outcome: str = "error"

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__

    def __str__(self) -> str:
        return self.message


class SpecError(RayTrainWorkflowsError, ValueError):
    """`sentences`: one for each wrong field, where several are wrong at once."""

    exit_code = 2
    outcome = "spec_error"
    sentences: tuple[str, ...] = ()


class InfeasibleError(SpecError):
    outcome = "infeasible"


class PayloadError(SpecError):
    pass


class SpecChangedError(SpecError):
    """`code_alone`: the fields are the same, and name the same functions, whose code is another."""

    def __init__(self, message: str, fields: tuple[str, ...] = (), code_alone: bool = False):
        super().__init__(message, fields, code_alone)
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


#: What asking a cluster can fail with; neither says anything about a job.
CLUSTER_ERRORS = (ClusterUnreachableError, ClusterRefusedError)


class StorageError(RayTrainWorkflowsError, OSError):
    retryable = True
    exit_code = 11
    outcome = "infrastructure"


class StepError(RayTrainWorkflowsError, RuntimeError):
    """A step failed after it was submitted. `details` is the whole traceback where one is known."""

    exit_code = 12

    def __init__(self, message: str, details: str = ""):
        super().__init__(message, details)
        self.details = details


class UserCodeError(StepError):
    exit_code = 10
    outcome = "user_error"


class InfrastructureError(StepError):
    retryable = True
    exit_code = 11
    outcome = "infrastructure"


class StorageFullError(StepError):
    retryable = True
    exit_code = 17
    outcome = "storage_full"


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


#: The driver found no receipt under its run URI: the storage is not shared between orchestrator and cluster. It has
#: no place to record that, so it says it by its exit code alone.
EXIT_NOT_SHARED = 16
#: What was handed over to the job is gone, so its driver cannot reach the storage either.
EXIT_NOT_HANDED_OVER = 19
#: The outcome of an attempt whose driver got a SIGTERM. Whether somebody stopped the job or its node went down is for the
#: supervisor to tell, by what Ray says of the job.
TERMINATED = "terminated"
#: The outcome of an attempt that the cluster took no job of: nothing ran, and another spec may still take the run's name.
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
    )
}


def from_outcome(outcome: str, message: str, details: str = "") -> RayTrainWorkflowsError:
    """The error that an attempt recorded as its end, as an exception again."""
    message, details = plain(message), plain(details)
    cls = _BY_OUTCOME.get(outcome, SpecError if outcome in (SpecError.outcome, REFUSED) else StepError)
    return cls(message, details) if issubclass(cls, StepError) else cls(message)
