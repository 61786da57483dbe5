"""Batch scripts of Slurm, LSF, PBS and Grid Engine, as their scheduler and the shell read them."""
