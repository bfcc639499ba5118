"""What Acme adds to ray-train-workflows: one thing of each kind."""
