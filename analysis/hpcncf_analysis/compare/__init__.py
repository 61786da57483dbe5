"""Two runs or studies: what changed, what it did to speed and quality, and whether that is real."""
