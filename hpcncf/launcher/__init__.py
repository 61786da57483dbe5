"""What a process learns from whatever started it: Slurm, torchrun, MPI, another scheduler."""
