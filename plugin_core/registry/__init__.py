"""The model registry: maps a model name and an alias to a checkpoint.

For experiment tracking see `tracking`.
"""
