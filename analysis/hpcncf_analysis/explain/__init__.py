"""Interpret summaries of schedulers."""
