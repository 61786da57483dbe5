"""What surrounds one rank's work: its launcher, the run meant, the record it leaves."""
