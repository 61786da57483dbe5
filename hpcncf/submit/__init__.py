"""Runs are sent, to Slurm or to this machine; sent once more; cancelled."""
