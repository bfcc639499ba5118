"""Experiment trackers: one tracking run per run, fed from its journal.

For model versions and aliases see `registry`.
"""
