"""`example_clusters/slurm.sbatch` on two hosts, started by a fake of Slurm's `srun` and `scontrol`."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from devtools.chaos import wait_until
from devtools.servers import s3_server
from plugin_core.clusters.local_head import marked_processes
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from plugin_core.storage.location import Location
from tests.support.hosts import SCRIPTS, Hosts, available

FAKE = Path(__file__).parents[1] / "support" / "fake_slurm"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(available()), reason=available())]

LOOP = """
def loop(config):
    import ray.train
    ray.train.report({"host": ray.util.get_node_ip_address()})
"""


@pytest.mark.timeout(600)
def test_a_slurm_job_is_a_cluster_until_its_command_is_over(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="h-") as short,
        Hosts(Path(short), 2, ray=False) as hosts,
        s3_server(tmp_path / "s3.log", hosts.gateway) as storage,
    ):
        (tmp_path / "slurm_loop.py").write_text(LOOP)
        spec = {
            "kind": "train",
            "framework": "python",
            "train_loop_per_worker": "slurm_loop:loop",
            "scaling_config": {"num_workers": 2, "placement_strategy": "STRICT_SPREAD"},
            "report_all_ranks": True,
            "run_config": {"name": "slurm", "storage_path": storage},
        }
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        ips = [hosts.ip(number) for number in range(2)]
        environment = hosts.environment()
        environment |= {
            "PATH": f"{FAKE}{os.pathsep}{environment['PATH']}",
            "PYTHONPATH": str(tmp_path),
            "FAKE_SLURM": " ".join(f"{ip}={name}" for ip, name in zip(ips, hosts.names, strict=True)),
            "SLURM_JOB_NODELIST": ",".join(ips),
            "SLURM_CPUS_ON_NODE": "1",
            "SLURM_SUBMIT_DIR": str(SCRIPTS),
            "RAY_TMPDIR": short,
            "RAY_STORAGE": storage,
        }
        command = 'raytrain run spec.json --quiet --address "$RAY_API_SERVER_ADDRESS" && exit 7'
        words = ["ip", "netns", "exec", hosts.names[0], "bash", str(SCRIPTS / "slurm.sbatch"), "bash", "-c", command]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 7, done.stdout[-3000:] + done.stderr[-3000:]
        rundir = RunDir.at(Location.of(storage).child("slurm").uri)
        assert {rank["host"] for rank in read_reports(rundir)[-1]["ranks"]} == set(ips)
        wait_until(lambda: marked_processes(hosts.mark) == [], 60)  # the cluster ends with the command
