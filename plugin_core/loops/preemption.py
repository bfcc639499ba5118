"""For train loops on nodes that can be taken away: a just-in-time checkpoint when Ray announces it."""

from __future__ import annotations


class PreemptionNotice:
    """Says, once for each notice, that a node of the workers is about to be taken away.

        notice = PreemptionNotice()
        for step in range(steps):
            ...
            if notice.came() or step % 100 == 0:
                ray.train.report(metrics, checkpoint=save())

    The step then repeats nothing: Ray Train restarts the workers elsewhere from that checkpoint and charges it to
    `FailureConfig.max_preemption_failures`, not to `max_failures`.
    """

    def __init__(self) -> None:
        self._seen = False

    def came(self) -> bool:
        """True at the first call after a notice. A barrier: every worker calls it equally often."""
        import ray.train

        if self._seen or ray.train.get_preemption_info() is None:
            return False
        self._seen = True
        return True
