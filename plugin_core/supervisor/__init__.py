"""The orchestrator's side: submit a run, watch it, attach to it, cancel it, and report its progress.

Everything here runs in the engine's process and needs no Ray installation on the path to a job.
"""
