"""How often the cluster's side of a run does things that others wait for. `supervisor/timings.py` is the
orchestrator's; `tests/unit/test_timings.py` says how they depend on each other and on the limits of a step."""

#: Seconds between two of the driver's looks at the run directory; each look moves the heartbeat.
BEAT_S = 2.0
#: Seconds between two flushes of the journal.
FLUSH_S = 1.0
#: Seconds between two writes of a process's kept log; what it printed since the last one is lost with a SIGKILL.
LOG_FLUSH_S = 10.0
#: Seconds for which a check of the fence stays valid for writes to the attempt's own names.
FENCE_CACHE_S = 1.0
#: Seconds between two checks of the fence by Ray Train's controller, so that it stops by itself if its driver is frozen.
FENCE_EVERY_S = 5.0
#: Seconds the driver's process may take to exit after its attempt. If something hangs (an exit handler, a library's
#: thread), its traceback is logged and the process is killed.
EXIT_S = 30.0
