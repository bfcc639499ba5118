"""The search step: Ray Tune over trials that are runs of their own."""
