"""From a run's records to its rows: what `collect` gathers, figure by figure."""
