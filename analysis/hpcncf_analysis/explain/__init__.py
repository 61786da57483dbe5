"""What follows from a scheduler's summary of a job, what does not, and what would tell."""
