"""The same on the embedded head of another environment, with other versions. `python remote.py CLUSTER_PYTHON`, in an
empty folder."""

import json
import platform
import subprocess
import sys

from core import smoke

from plugin_core import RayCluster, TrainSpec, run
from plugin_core.errors import SpecError

HEAD = """
import json
from plugin_core.clusters import local_head
head = local_head.ensure(num_cpus=4)
print(json.dumps([head.address, head.token]))
"""


def refused(cluster: RayCluster, spec: TrainSpec) -> str:
    """What is said of a function that is sent by value: it is bytecode, which another Python does not understand."""
    by_value = spec.model_copy(update={"train_loop_per_worker": lambda config: None}).with_name("by-value")
    try:
        run(by_value, cluster)
    except SpecError as exc:
        return exc.message
    return ""


if __name__ == "__main__":
    there = sys.argv[1]
    address, token = json.loads(subprocess.run([there, "-c", HEAD], check=True, capture_output=True, text=True).stdout)
    try:
        cluster = RayCluster(address, token, python=there)
        spec = smoke(cluster)
        theirs = subprocess.run([there, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
        if theirs.split(".")[:2] != platform.python_version().split(".")[:2]:
            said = refused(cluster, spec)
            assert theirs in said, said
            assert platform.python_version() in said, said
    finally:
        subprocess.run([there, "-c", "from plugin_core.clusters import local_head; local_head.stop()"], check=True)
