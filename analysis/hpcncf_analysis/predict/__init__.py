"""Seconds per epoch of a configuration that was not run."""
