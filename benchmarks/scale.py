"""Costs that must not grow, with their targets: `make bench-scale`, or `python -m benchmarks.scale [PART [SIZE …]]`.

`log [MB]`: reading a job's log of 1 GB; `ray [REPORTS]`: the memory that Ray's own processes keep per report; `reports
[COUNT]`: the memory of a million reports and the duration of a look; `resume [CHECKPOINTS [RANKS]]`: the work before a
resume.
"""

from __future__ import annotations

import sys

from benchmarks import scale_log, scale_ray, scale_reports, scale_resume

PARTS = {"log": scale_log.main, "ray": scale_ray.main, "reports": scale_reports.main, "resume": scale_resume.main}


if __name__ == "__main__":
    part, sizes = sys.argv[1:2], [int(size) for size in sys.argv[2:]]
    for name in part or PARTS:
        PARTS[name](*sizes)
