"""Engine native: one compiled step."""
