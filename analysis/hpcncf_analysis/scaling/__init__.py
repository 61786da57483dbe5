"""How runs scale with cores and ranks: against their base, as a law, and rank by rank."""

from hpcncf_analysis.scaling.speedup import with_scaling

__all__ = ["with_scaling"]
