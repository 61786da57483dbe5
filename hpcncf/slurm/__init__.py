"""Slurm: what it is asked for, what its words mean, the commands that ask it."""
