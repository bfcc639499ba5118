"""Experiment trackers: one tracking run for each run, fed from its journal.

Model versions and aliases are in `registry`.
"""
