"""What docs/results.md tells is measured here; each benchmark is a module with a `main`."""
