"""The evaluation step: predictions, metrics, plots, and whether they are good enough."""
