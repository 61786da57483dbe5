"""Analyse the tables and records of runs, and draw conclusions for the user."""
