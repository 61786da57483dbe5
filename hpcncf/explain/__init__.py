"""Read what schedulers and their tools say of a job, and conclude what follows from it.

Standard library only: it works where Slurm, torch and pandas are absent.
"""
