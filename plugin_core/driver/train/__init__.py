"""The training step: Ray Train's controller and workers around the user's train loop."""
