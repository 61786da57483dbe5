"""The benchmarks behind docs/results.md: each is a module with a `main`."""
