"""How often an orchestrator looks at a run, and how long it waits for the cluster's side (`runs/timings.py`)."""

#: Seconds between two looks: short at first, so as not to delay a short step, then longer.
POLL_FIRST_S, POLL_MAX_S = 0.5, 4.0
#: Seconds between two requests to the cluster, in between looks, about whether the job has ended.
JOB_EVERY_S = 2.0
#: Seconds to connect again to a cluster on which a job may be alive.
CONNECT_S = 30.0
#: Seconds of a silent heartbeat after which the embedded head of another host or container is given up, unless
#: `limits.unreachable_timeout_s` is set. This process can never query it, and nobody can once its container is replaced.
EMBEDDED_WAIT_S = 300.0
#: Seconds after which a job that has its result but does not end is stopped. Its driver exits by itself before that
#: (`EXIT_S`), unless it is suspended or hangs in the kernel.
STOP_S = 40.0
#: Seconds after which the result is returned in any case; also how long to wait for an unreachable cluster.
LEAVE_S = 60.0
