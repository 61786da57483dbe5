"""One rank of a run on its node, from start to record."""
