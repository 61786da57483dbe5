"""How a training step is computed."""
