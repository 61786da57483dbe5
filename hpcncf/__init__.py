"""Measure why a recommender's training job wastes its cores, and what to ask for instead."""

__version__ = "0.1.0"
