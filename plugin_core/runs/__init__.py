"""The run directory: a run's state on storage, and the rules for who may write it.

Code that starts, watches and executes runs is elsewhere (`supervisor`, `driver`).
"""
