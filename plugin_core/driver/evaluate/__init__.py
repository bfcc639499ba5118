"""The evaluation step: predictions, metrics, plots, and the pass/fail verdict.

A model's promotion is in `registry`.
"""
