"""What a run's cores, memory, disks and network did."""

from hpcncf.monitor.measured import Measured
from hpcncf.monitor.sampler import Monitor

__all__ = ["Measured", "Monitor"]
