"""What each remedy did: alone against the job's baseline, and on top of others."""
