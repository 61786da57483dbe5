"""Engines: the different implementations of a training step."""
