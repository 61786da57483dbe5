"""Tests on a real Slurm; a package, so that its conftest is not mistaken for that of all tests."""
