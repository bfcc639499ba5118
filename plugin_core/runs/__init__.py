"""The run directory: what a run keeps on storage, and the rules for who may write it.

Starting, watching and executing runs live elsewhere (`supervisor`, `driver`).
"""
