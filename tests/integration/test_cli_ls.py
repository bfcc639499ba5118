"""`raytrain ls` on S3, by a server that counts what it is asked."""

import json
from collections import Counter

import pyarrow
import pytest
from typer.testing import CliRunner

from benchmarks.counting_s3 import counting_s3
from devtools.written_runs import write_runs
from plugin_core.cli import app
from plugin_core.storage.location import Location
from plugin_core.storage.threads import THREADS

RUNS = 90


@pytest.mark.slow
def test_ls_on_s3_takes_at_most_3_requests_a_run() -> None:
    with counting_s3() as (uri, requests):
        storage = Location.of(uri).uri
        states = write_runs(storage, RUNS)
        requests.take()
        done = CliRunner().invoke(app, ["ls", storage, "--json"])
        assert done.exit_code == 0, done.output
        asked = requests.take()
        found = {run["name"]: run for run in json.loads(done.stdout)}
        assert len(found) == RUNS
        assert Counter(run["state"] for run in found.values()) == Counter(states)
        training = next(run for run in found.values() if run["state"] == "training")
        assert (training["reports"], training["counters"], training["attempt"]) == (3, {"epoch": 2}, 1)
        assert len(asked) <= 3 * RUNS
        assert pyarrow.io_thread_count() == THREADS, "as many listings at once as runs that are read"
        a_run = Counter(key.partition("/.step")[0] for _, key in asked if "/run-" in key)
        assert max(a_run.values()) <= 4, "one listing, and three reads"
        assert {kind for kind, _ in asked} <= {"GET", "LIST", "HEAD"}, "nothing is written"
