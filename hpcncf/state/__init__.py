"""What state a run is in: read from what it left, its submissions, processes and Slurm."""
