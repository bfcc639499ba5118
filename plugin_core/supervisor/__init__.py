"""The orchestrator's side: submit a run, watch it, attach to it, cancel it, and report its progress.

Everything here runs in the engine's process; submitting a job needs no Ray installation.
"""
