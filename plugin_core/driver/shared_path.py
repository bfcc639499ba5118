"""Whether every node of the cluster sees a run directory that is a local path."""

from __future__ import annotations

import logging
from pathlib import Path

from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir

#: Seconds that all nodes together have to look; one that does not answer is not judged.
LOOK_S = 60.0

logger = logging.getLogger(__name__)


def check_shared(rundir: RunDir) -> None:
    """Raise SpecError where a node does not see the run directory: its workers' checkpoints would lie on that node alone. A
    cluster of one node, and storage that is no local path, need no look."""
    if not rundir.location.is_local:
        return
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    look = ray.remote(num_cpus=0)(_sees)
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[look.options(scheduling_strategy=there).remote(rundir.step.path)] = node["NodeManagerAddress"]
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=LOOK_S)
    for reference in late:
        logger.warning("the node %s has not said whether it sees %s", asked[reference], rundir.uri)
    blind = []
    for reference in done:
        try:
            if not ray.get(reference):
                blind.append(asked[reference])
        except ray.exceptions.RayError as exc:
            logger.warning("the node %s cannot say whether it sees %s: %s", asked[reference], rundir.uri, exc)
    if blind:
        raise SpecError(
            f"run_config.storage_path: got {rundir.location.parent.uri!r}, which {', '.join(sorted(blind))} of the"
            f" cluster's {len(nodes)} nodes cannot see; expected a path that all nodes mount, or storage by URI, as"
            " s3://bucket/prefix"
        )


def _sees(path: str) -> bool:
    return Path(path).is_dir()
