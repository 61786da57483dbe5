"""Observe any Python program without changing a line of it.

`launch` puts `inject/` on the program's PYTHONPATH; `inject/_hpcncf_probe` runs inside it and
writes a file for each process; `read` turns those into the profiles of a rank's record.
"""
