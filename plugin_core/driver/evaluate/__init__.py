"""The evaluation step: predictions, metrics, plots, and the pass/fail verdict.

Promoting a model is in `registry`.
"""
