"""The steps of a workflow that share a cluster, in a process that kills itself once, at a chosen moment:
`STORAGE KUBECONFIG ADDRESS [MOMENT]`."""

import os
import signal
import sys
from typing import Any

from plugin_core import KubeRayCluster, KubeRaySettings, RunConfig, run
from plugin_core.clusters import kuberay
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.clusters.kubernetes_api import Kubernetes
from plugin_core.supervisor.supervisor import run_sync
from tests.support.fake_steps import spec_at

#: Each is a call at which the process dies: before it ("before …"), or after it.
MOMENTS = {
    "created": (Kubernetes, "create"),
    "taken up": (KubeRayCluster, "_take_up"),
    "before submit": (JobsClient, "submit"),
    "submitted": (JobsClient, "submit"),
    "renewed": (KubeRayCluster, "keep"),
    "before release": (KubeRayCluster, "release"),
    "released": (KubeRayCluster, "release"),
    "before the end": (KubeRayCluster, "end_workflow"),
}
STEPS = ("train", "evaluate", "predict")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str, step: int) -> None:
    """Die at that moment of the `step`-th step."""
    owner, name = MOMENTS[moment]
    real, calls = getattr(owner, name), 0

    def count() -> bool:
        nonlocal calls
        calls += 1
        return calls == step

    async def dying(self: Any, *arguments: Any, **options: Any) -> Any:
        now = count()
        if now and moment.startswith("before"):
            die()
        answer = await real(self, *arguments, **options)
        if now:
            die()
        return answer

    def dying_at_once(self: Any, *arguments: Any) -> Any:
        answer = real(self, *arguments)
        if count():
            die()
        return answer

    setattr(owner, name, dying_at_once if name in ("create", "_take_up") else dying)


def cluster_at(kubeconfig: str, address: str, workflow: str = "flow-1", **fields: Any) -> KubeRayCluster:
    settings = KubeRaySettings(image="registry/train:1")
    given = {"lease_s": 2.0, "linger_s": 600.0, **fields}
    shared = KubeRayCluster("team", settings=settings, kubeconfig=kubeconfig, address=address, share="workflow", **given)
    return shared.of_workflow(workflow)


def main() -> None:
    storage, kubeconfig, address, *more = sys.argv[1:]
    kuberay.POLL_S = 0.05
    if more:
        arm(more[0], int(more[1]))
    cluster = cluster_at(kubeconfig, address)
    for name in STEPS:
        spec = spec_at(storage)
        run(spec.model_copy(update={"run_config": RunConfig(name=name, storage_path=storage)}), cluster, progress=False)
    run_sync(cluster.end_workflow())
    print("done", flush=True)


if __name__ == "__main__":
    main()
