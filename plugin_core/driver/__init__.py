"""The cluster's side: one attempt of a run as a Ray job, its watchdog, and the steps themselves.

Nothing here is imported by the orchestrator, except to run a step in its own process (`execute`).
"""
