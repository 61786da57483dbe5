"""What costs time in a user's own Python and batch scripts, found by reading them. Runs nothing."""
