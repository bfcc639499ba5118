"""The same on the embedded head of another environment, with other versions. `python remote.py CLUSTER_PYTHON`, in an
empty folder."""

import json
import os
import platform
import subprocess
import sys

import steps

from plugin_core import EvaluateSpec, RayCluster, RunConfig, TrainSpec, run
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
    there, here = sys.argv[1], os.getcwd()
    address, token = json.loads(subprocess.run([there, "-c", HEAD], check=True, capture_output=True, text=True).stdout)
    try:
        cluster = RayCluster(address, token, python=there)
        spec = TrainSpec.model_validate(steps.training(f"{here}/runs", f"{here}/killed"))
        trained = run(spec.with_name("smoke"), cluster)
        judged = EvaluateSpec(
            evaluate="steps:evaluate",
            checkpoint=trained.checkpoint,
            run_config=RunConfig(name="judged", storage_path=f"{here}/runs"),
        )
        steps.check(trained.to_json(), run(judged, cluster).to_json())
        theirs = subprocess.run([there, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
        if theirs.split(".")[:2] != platform.python_version().split(".")[:2]:
            said = refused(cluster, spec)
            assert theirs in said, said
            assert platform.python_version() in said, said
    finally:
        subprocess.run([there, "-c", "from plugin_core.clusters import local_head; local_head.stop()"], check=True)
