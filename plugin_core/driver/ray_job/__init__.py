"""Runs a function or a command as a step (`RayJobSpec`): in one process, which is restarted when it is lost.

`guard` is the parent of a command's process; it imports none of the other modules.
"""
