"""How ranks stay one model."""
