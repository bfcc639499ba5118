"""`python -m tests.fuzz [--seed N]`: all mutations, and pairs of them drawn by the seed."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.cases import all_cases
from tests.fuzz.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--only", default="", help="cases whose way and name hold this")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.monotonic()
    cases = [case for case in all_cases(options.seed) if options.only in f"{case.way}: {case.name}"]
    tally = run(cases, options.processes)
    for failure in tally.failures:
        print(failure)
    print("accepted on purpose:")
    for reason, count in sorted(tally.reasons.items(), key=lambda pair: -pair[1]):
        print(f"{count:6} {reason}")
    print(f"{tally} (seed {options.seed}, {time.monotonic() - began:.0f} s)")
    print("target: 0 foreign exceptions, 0 hangs, 0 wrong inputs accepted")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
