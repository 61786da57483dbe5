"""A program that is not ours, recorded as ours: its process, its rank, what it reports."""
