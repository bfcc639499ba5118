"""The search step: Ray Tune around trainings that are runs of their own."""
