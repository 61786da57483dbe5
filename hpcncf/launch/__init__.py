"""Submit runs to Slurm or to this machine; retry and cancel them."""
