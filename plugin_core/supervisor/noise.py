"""Which lines of a job's log an engine's log leaves out. The job's own log keeps everything (`raytrain logs RUN`).

Only known lines are left out, each for a stated reason. All others are shown, warnings and errors too, some of them
shortened.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

#: The beginning of a message, after the name of its process → why nobody misses it.
KNOWN = {
    # what Ray prints while it sets up a job
    r"\S+ \S+\s+INFO (job_manager|worker|packaging|dataset)\.py:\d+ -- ": "Ray sets up the job; its id is told",
    r"Running entrypoint for job ": "how the driver is started; the job's id is told",
    # Ray Train's own account of what the journal tells
    r"Requesting resources: ": "a phase says that workers are waited for",
    r"Attempting to start training worker group of size ": "a phase says that workers are waited for",
    r"Started training worker group of size ": "a phase says how many workers started",
    r"- \(ip=\S+, pid=\d+\) world_rank=": "a phase says how many workers started",
    r"Setting up process group for: |Moving model to device: |Wrapping provided model in ": "said in every torch training",
    r"Reporting training result \d+: ": "each report is a line of its own",
    r"Checkpoint successfully created at: ": "a report says which checkpoint is kept",
    r"(\S+ \S+\s+INFO \S+ -- )?A run snapshot was found in storage folder at: ": "the line about the restart tells it",
    r"This snapshot contains a list of checkpoints reported via ": "the line about the restart tells it",
    r"If you meant to start a brand new training job without ": "the line about the restart tells it",
    r"result: \{": "the outcome is told in words",
    r"\S+ \S+ INFO raytrain\.driver: (waiting for|admitted after) ": "a phase tells it",
    # Ray Data: three or more lines per dataset, so per report if the loop makes one for each
    r"(\S+ \S+\s+INFO (streaming_executor|logging_progress)\.py:\d+ -- )": "progress of each dataset, all the time",
    r"(Starting execution|Execution plan) of Dataset ": "progress of each dataset, all the time",
    r"\S+\s+Dataset \S+ execution finished in ": "progress of each dataset, all the time",
    r"(\S+ \S+\s+\w+ \S+ -- )?Progress bars disabled\.": "they are off on purpose: each redraw would be a line",
    r"(\S+ \S+\s+INFO \S+ -- )?Progress will be logged because ": "they are off on purpose",
    r"Tip: Use `take_batch\(\)` instead ": "advice for a terminal",
    # Ray's complaints about itself, in healthy runs
    r"\[[^]]+\] (\(\S+\) )?core_worker(_process)?\.cc:\d+: ": "an actor that is not meant to restart; lost connections",
    r"\[[^]]+\] (\(\S+\) )?\S+\.cc:\d+: Failed to kill actor ": "the actor was gone already",
    r".*Failed to kill actor ": "the actor was gone already",
    r".*PreemptionWatcher.* actor restart will fail": "an actor that is not meant to restart",
    r".*`?exclude_resources`? is deprecated": "Ray Data warns of a call of its own",
    r"\s+self\.exclude_resources = exclude_resources": "the second line of that warning",
    r"Using blocking ray\.get inside async actor\.": "Ray Train does so in an actor of its own",
    r".*ListFiles.*InterruptedError": "Ray Data stops reading once it has enough rows",
    r".*InterruptedError.*ListFiles": "Ray Data stops reading once it has enough rows",
    # after a cancel
    r"(\[[^]]+\] )?(\S+\.cc:\d+: )?\*\*\* SIG[A-Z]+ received at time=": "the C++ stack of a process told to stop",
    r"(\[[^]]+\] )?(\S+\.cc:\d+: )?(PC:|\s*)\s*@ +0x[0-9a-f]+ ": "the C++ stack of a process told to stop",
}
#: A message of many sentences → what is left of it.
SHORTENED = {
    r"A worker died or was killed while executing a task by an unexpected system error\. .*\bWorker PID: (\d+) .*": (
        r"the process \1 was killed (SIGKILL, or out of memory) or crashed"
    ),
}
#: The first line of a block → the first line after it, and why nobody misses the block.
BLOCKS = {
    r"\[FailurePolicy\] (RETRY|RAISE)": (
        r"Attempting to start |Requesting resources: |journal: |.*\bWARNING\b",
        "a line says why the workers restart or the training failed; the error at the end has the traceback",
    ),
    r"the attempt ended with:": (r"(?!)", "the driver's last words, which the error at the end repeats"),
}
#: A line before a traceback → why both can be left out.
TRACEBACKS = {
    r"Exception in thread \S*completion-signaler": "Ray Data stops reading once it has enough rows",
    r"Error in training function:": "a line says it; the error at the end has the traceback",
    r"Exception raised in callback hook '\w+' from callback 'GuardCallback'": "how a training is ended on purpose",
}

#: How many characters of a line are looked at: a line may be very long, and the event loop waits.
LOOKED_AT = 1000

_PROCESS = re.compile(r"\((?P<name>[\w.:*<>()-]+(?: pid=\d+)?(?:, ip=[\d.:a-f]+)?|raylet|pid=\w+)\) ?(?P<said>.*)")
_KNOWN = re.compile("|".join(f"(?:{pattern})" for pattern in KNOWN))
_BLOCKS = [(re.compile(begin), re.compile(end)) for begin, (end, _) in BLOCKS.items()]
_SHORTENED = [(re.compile(pattern), left) for pattern, left in SHORTENED.items()]
_TRACEBACKS = re.compile("|".join(TRACEBACKS))
#: Within a traceback: its frames, and what leads to the next one of a chain.
_FRAMES = re.compile(r"\s|$|Traceback \(most recent call last\)")
_CHAINED = re.compile(r"$|Traceback \(most recent call last\)|The above exception was|During handling of the above")
#: What a line says about itself, the worst first.
_LEVELS = (
    (logging.ERROR, re.compile(r"\b(ERROR|CRITICAL|FATAL)\b|^(\w+\.)*\w*(Error|Exception|Interrupt)(:|$)|^\[[^]]* E \d+ ")),
    (logging.WARNING, re.compile(r"\bWARN(ING)?\b|Warning: |^\[[^]]* W \d+ ")),
)


class Filter:
    """Drops known lines from one job's log. The lines of its processes are interleaved, so it tracks each process."""

    def __init__(self) -> None:
        self._blocks: dict[str, re.Pattern[str]] = {}
        #: process → whether its traceback's last line was seen
        self._tracebacks: dict[str, bool] = {}

    def kept(self, lines: Iterable[str]) -> list[str]:
        return [_shorter(line) for line in lines if line.strip() and self._keeps(*_parts(line))]

    def _keeps(self, process: str, said: str) -> bool:
        if self._in_block(process, said) or self._in_traceback(process, said):
            return False
        for begin, end in _BLOCKS:
            if begin.match(said):
                self._blocks[process] = end
                return False
        if _TRACEBACKS.match(said):
            self._tracebacks[process] = False
            return False
        return bool(said.strip()) and not _KNOWN.match(said)

    def _in_block(self, process: str, said: str) -> bool:
        end = self._blocks.get(process)
        if end is not None and end.match(said):
            del self._blocks[process]
            return False
        return end is not None

    def _in_traceback(self, process: str, said: str) -> bool:
        over = self._tracebacks.get(process)
        if over is None:
            return False
        if over and not _CHAINED.match(said):
            del self._tracebacks[process]
            return False
        self._tracebacks[process] = not _FRAMES.match(said) and not _CHAINED.match(said)
        return True


def _shorter(line: str) -> str:
    for pattern, left in _SHORTENED:
        line = pattern.sub(left, line, count=1) if len(line) < 2 * LOOKED_AT else line
    return line


def worst(lines: Iterable[str]) -> tuple[str, int]:
    """The first of the worst lines, without its process's name, and its level."""
    found, level = "", logging.NOTSET
    for line in lines:
        said = _parts(line)[1]
        its = next((number for number, pattern in _LEVELS if pattern.search(said)), logging.INFO)
        if its > level:
            found, level = said, its
    return found[:200], level


def _parts(line: str) -> tuple[str, str]:
    """A line's process, "" for the driver, and the beginning of what it says."""
    match = _PROCESS.fullmatch(line[:LOOKED_AT])
    return (match["name"], match["said"]) if match else ("", line[:LOOKED_AT])
