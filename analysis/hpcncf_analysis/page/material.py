"""What a page is made of: the collected tables, and what the analysis found in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hpcncf.collect import Collected
from hpcncf_analysis import summary
from hpcncf_analysis.advice.conclude import Conclusion
from hpcncf_analysis.advice.files import Written
from hpcncf_analysis.diagnosis import Diagnosis
from hpcncf_analysis.page.section import Drawn
from hpcncf_analysis.summary import Configuration
from hpcncf_analysis.timeline import Timeline

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Material:
    found: Collected
    shown: Sequence[Configuration]
    conclusion: Conclusion
    alerts: Sequence[str]
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    """By run."""
    written: Sequence[Written] = ()
    """What is advised, the first before the others."""
    score: Sequence[Row] = ()
    """Predictions, beside what was measured."""
    figures: Mapping[str, Drawn] = field(default_factory=dict)
    timelines: Mapping[str, Timeline] = field(default_factory=dict)
    """By label, of the runs whose steps are shown over time."""
    quality: float | None = None
    """The HR@10 to which the time is asked for."""

    @cached_property
    def runs(self) -> list[Row]:
        """Those that count."""
        return summary.completed(self.found.runs)

    def drawn(self, *names: str) -> list[Drawn]:
        return [self.figures[name] for name in names if name in self.figures]
