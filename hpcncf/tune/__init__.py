"""Which runs to make next, to find the best configuration of a job's grid within a budget."""
