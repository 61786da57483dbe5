"""What to request next, and how sure that is."""
