"""The program's own generator, run in its folder."""

import runpy

runpy.run_path("generate_sine_wave.py", run_name="__main__")
