"""For train loops on preemptible nodes: a just-in-time checkpoint when Ray announces a preemption."""

from __future__ import annotations

from plugin_core.errors import SpecError


class PreemptionNotice:
    """Reports, once per notice, that a worker's node is about to be preempted.

        notice = PreemptionNotice()
        for step in range(steps):
            ...
            if notice.came() or step % 100 == 0:
                ray.train.report(metrics, checkpoint=save())

    No work is then repeated: Ray Train restarts the workers elsewhere from that checkpoint and counts this against
    `FailureConfig.max_preemption_failures`, not against `max_failures`.
    """

    def __init__(self) -> None:
        self._seen = False

    def came(self) -> bool:
        """Return True on the first call after a notice. A barrier: every worker must call it the same number of times.
        Raises SpecError with Ray before 2.58, which gives no notice."""
        import ray.train

        if not hasattr(ray.train, "get_preemption_info"):
            raise SpecError(f"PreemptionNotice: got Ray {ray.__version__} on the cluster; expected Ray 2.58 or newer")
        if self._seen or ray.train.get_preemption_info() is None:
            return False
        self._seen = True
        return True
