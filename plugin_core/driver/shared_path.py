"""Checks that every node of the cluster sees a run directory that is a local path."""

from __future__ import annotations

import logging
from pathlib import Path

from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir

#: Seconds all nodes together have to answer; a node that does not answer is ignored.
LOOK_S = 60.0

logger = logging.getLogger(__name__)


def check_shared(rundir: RunDir) -> None:
    """Raise SpecError if a node does not see the run directory: its workers' checkpoints would exist on that node only.
    Single-node clusters and storage by URI need no check."""
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
        logger.warning("node %s did not answer whether it sees %s", asked[reference], rundir.uri)
    blind = []
    for reference in done:
        try:
            if not ray.get(reference):
                blind.append(asked[reference])
        except ray.exceptions.RayError as exc:
            logger.warning("node %s could not check whether it sees %s: %s", asked[reference], rundir.uri, exc)
    if blind:
        raise SpecError(
            f"run_config.storage_path: got {rundir.location.parent.uri!r}, which {', '.join(sorted(blind))} of the"
            f" cluster's {len(nodes)} nodes cannot see; expected a path that all nodes mount, or a storage URI like"
            " s3://bucket/prefix"
        )


def _sees(path: str) -> bool:
    return Path(path).is_dir()
