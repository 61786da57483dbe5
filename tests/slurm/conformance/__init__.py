"""One set of cases, on the fake Slurm and on the real one: what the fake does, Slurm does.

`make test` runs them on the fake, `make test-slurm` on both. They do not know hpcncf, test_hpcncf
apart.
"""
