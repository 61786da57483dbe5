"""Collect the records of a results folder into tables."""
