"""The training step: Ray Train's controller and workers around the user's train loop.

What follows a lost attempt is decided in `supervisor`; Ray's private classes are in `ray_internals`.
"""
