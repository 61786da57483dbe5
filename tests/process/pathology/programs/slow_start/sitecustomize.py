"""A rank's Python takes long to start, as from an environment on a busy file server."""

import os
import time

if "RANK" in os.environ:
    time.sleep(15)
