"""The stacks of all ranks of a stalled training, and which rank is somewhere other than the rest."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil

#: Seconds for the stacks of one process; and for those of all, including starting a process on each node.
DUMP_S, ALL_S = 20.0, 60.0
#: Functions in which a rank waits for others, by the folder or file that they are in.
_WAITS = re.compile(
    r"torch/distributed/|torch/autograd/graph|ray/train/collective/|ray/train/v2/(api/train_fn_utils|_internal/execution/(train_fn_utils|context))"
    r"|horovod/|xgboost/collective|lightgbm/|tensorflow/python/(distribute|eager)"
)
#: The frame of our wrapper around the user's train function.
_OURS = re.compile(r"^\s+(\S+\.)?train_loop_per_worker \(.*plugin_core/driver/train/worker\.py:\d+\)$")
#: Files that are not the user's.
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|/plugin_core/|^<frozen ")
_FRAME = re.compile(r"^\s+(?P<function>\S.*) \((?P<file>[^()]+):(?P<line>\d+)\)$")


def dump(pid: int) -> str:
    """The stacks of a process on this machine, or why there are none. A stopped process has some too."""
    try:
        state = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return "the process is gone"
    program = Path(sys.executable).with_name("py-spy")
    found = str(program) if program.exists() else shutil.which("py-spy")
    if found is None:
        return f"state: {state}\nno stacks: py-spy is not installed on this node"
    # it must not wait for a process that is stopped
    command = [found, "dump", "--nonblocking", "--full-filenames", "--pid", str(pid)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_S, check=False)
    except subprocess.TimeoutExpired:
        return f"state: {state}\nno stacks: py-spy took longer than {DUMP_S:g} s"
    text = said.stdout if said.returncode == 0 else f"no stacks: {said.stderr.strip()[-500:]}"
    return f"state: {state}\n{text}"


def where(stacks: str) -> tuple[str, str]:
    """What the train function's thread is doing: a key for comparing ranks, and words. Both are empty if unknown."""
    if stacks.startswith(f"state: {psutil.STATUS_STOPPED}\n"):
        return "stopped", "stopped (SIGSTOP)"
    frames: list[re.Match[str]] = []
    for line in stacks.splitlines():
        if line.startswith("Thread "):
            frames = []
        elif _OURS.match(line):
            break
        elif (frame := _FRAME.match(line)) is not None:
            frames.append(frame)
    else:
        return "", ""
    if not frames:
        return "", ""
    # a wait for others is named after the function that the loop called, not after that function's internals
    waits = [frame for frame in frames if _WAITS.search(frame["file"])]
    frame = waits[-1] if waits else frames[0]
    key = "waits" if waits else f"{frame['file']}:{frame['function']}"
    users = next((each for each in frames if not _LIBRARY.search(each["file"])), frame)
    return key, f"in {_words(frame)}" + (f", called by {_words(users)}" if users is not frame and not waits else "")


def _words(frame: re.Match[str]) -> str:
    return f"{frame['function']} ({Path(frame['file']).name}:{frame['line']})"


def odd_ranks(stacks: Mapping[int, str]) -> tuple[list[int], str]:
    """The ranks that are somewhere other than the rest, and the sentence that says so. No ranks if all are in one
    place, or if that is unclear."""
    places = {rank: where(text) for rank, text in stacks.items()}
    known = {rank: place for rank, place in places.items() if place[0]}
    if not known:
        return [], "the stacks tell nothing"
    common = Counter(key for key, _ in known.values()).most_common()
    usual = "waits" if any(key == "waits" for key, _ in common) else common[0][0]
    odd = [rank for rank, (key, _) in known.items() if key != usual]
    odd += [rank for rank in places if rank not in known and "process is gone" in stacks[rank]]
    if not odd or (usual != "waits" and len(common) > 1 and common[0][1] == common[1][1]):
        told = "; ".join(f"rank {rank} is {words}" for rank, (_, words) in sorted(known.items())[:8])
        return [], f"all ranks are {next(iter(known.values()))[1]}" if len(common) == 1 else told
    others = next((words for key, words in known.values() if key == usual), "")
    told = "; ".join(f"rank {rank} is {places[rank][1] or 'gone'}" for rank in sorted(odd)[:8])
    return sorted(odd), f"{told}, the others {'wait ' if usual == 'waits' else ''}{others}"
