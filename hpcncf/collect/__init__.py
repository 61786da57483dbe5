"""Records to tables."""
