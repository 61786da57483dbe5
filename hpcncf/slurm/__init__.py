"""Everything that knows Slurm: requests, batch scripts, queries, states, accounting."""
