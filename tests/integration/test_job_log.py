"""A job's log as a real Ray head has it."""

import asyncio
import sys
from pathlib import Path

import pytest

from plugin_core import LocalCluster
from plugin_core.supervisor.job_log import SHOWN, JobLog

#: Lines of 100 bytes, then some that no terminal should get, and a last one without its end.
JOB = """
import sys
for n in range(200_000):
    print(f"step {n:10} " + "x" * 83)
sys.stdout.flush()
sys.stdout.buffer.write(b"\\xff broken \\x1b[31mred\\x1b[0m\\r\\nthe end")
"""


@pytest.mark.slow
def test_a_log_of_20_megabytes_is_shown_by_its_beginning_and_its_end(cluster: LocalCluster, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)

    async def told() -> tuple[str, str]:
        async with await cluster.connect() as client:
            await client.submit("a-large-log", f"{sys.executable} {script}", {}, {})
            log, live = JobLog("a-large-log"), ""
            while (job := await client.job("a-large-log")) is None or not job.terminal:
                if job is not None and job.node_id:
                    live += "".join([piece async for piece in log.read(client, job, final=False)])
                await asyncio.sleep(0.2)
            live += "".join([piece async for piece in log.read(client, job, final=True)])
            other = JobLog("a-large-log")
            return live, "".join([piece async for piece in other.read(client, job, final=True)])

    live, late = asyncio.run(told())
    for text in (live, late):
        assert "\nstep          0 " in text[:1000]  # after what Ray says
        assert text.endswith("\ufffd broken red\nthe end")
        assert "step     199999 " in text
    assert "18.0 MB of the log not shown; `ray job logs a-large-log` has all" in late
    assert len(late) < SHOWN + 200
