"""The cluster's side: one attempt of a run as a Ray job, its watchdog, and the steps themselves.

The orchestrator imports this only to run a step in its own process (`execute`).
"""
