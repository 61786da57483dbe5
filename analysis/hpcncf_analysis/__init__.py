"""Read tables and records; draw conclusions."""
