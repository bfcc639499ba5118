"""The evaluation step: predictions, metrics, plots, and the pass/fail verdict."""
