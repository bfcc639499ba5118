"""The model registry: which checkpoint a name and an alias stand for.

Experiment tracking is in `tracking`.
"""
