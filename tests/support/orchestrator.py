"""An orchestrating process that kills itself at a chosen moment: `SPEC.json ADDRESS TOKEN [MOMENT] [CLOCK_OFFSET_S]`."""

import os
import signal
import sys
import time
from typing import Any

from plugin_core import RayCluster, load_spec, run
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.runs.directory import RunDir


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Replace the one call at which this process should die."""
    claim, submit, result = RunDir.claim, JobsClient.submit, RunDir.result

    async def dying_submit(self: JobsClient, *arguments: Any) -> None:
        if moment == "between receipt and submit":
            die()
        await submit(self, *arguments)
        if moment == "after submit":
            die()

    def dying_claim(self: RunDir, *arguments: Any) -> Any:
        if moment == "before the receipt":
            die()
        return claim(self, *arguments)

    def dying_result(self: RunDir) -> Any:
        found = result(self)
        if found is not None and moment == "between success and reading the result":
            die()
        return found

    JobsClient.submit, RunDir.claim, RunDir.result = dying_submit, dying_claim, dying_result  # type: ignore[method-assign,assignment]


def main() -> None:
    spec_file, address, token, *more = sys.argv[1:]
    if more and more[0]:
        arm(more[0])
    if len(more) > 1:
        real, offset = time.time, float(more[1])
        time.time = lambda: real() + offset
    # a process that is told to start at once with another one
    if len(more) > 2:
        while time.monotonic() < float(more[2]):
            time.sleep(0.001)
    cluster = RayCluster(address, token, python=sys.executable)
    print("RESULT", run(load_spec(spec_file), cluster).model_dump_json(), flush=True)


if __name__ == "__main__":
    main()
