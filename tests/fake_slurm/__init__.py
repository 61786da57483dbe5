"""A Slurm that is not one: its commands on PATH, a controller behind them, all nodes this machine.

`bin/` holds the commands. Each hands its words to the controller (`controller.py`), one process for
each folder $FAKE_SLURM, which the first command starts. tests/conformance proves it against Slurm.
"""
