"""Data sets, prepared once as memory-mapped arrays."""
