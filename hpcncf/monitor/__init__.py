"""Measure what a run's cores, memory, disks, network and GPUs did."""
