"""Tune: a search space as data, trials that are Ray Train runs, and a search that goes on after a kill."""
