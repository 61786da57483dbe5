"""Job file to plan: settings, checks, grid, run ids."""
