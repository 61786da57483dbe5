"""Turn a job file into a plan: settings, checks, grid and run ids."""
