"""Runs a function or a command as a step (`RayJobSpec`): in one process, which is started again when it is lost.

`guard` is the parent of a command's process; it imports nothing of the rest.
"""
