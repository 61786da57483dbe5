"""What a remedy is expected to bring: the documents tell the constants that the code has."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_evidence import evidence

from hpcncf_analysis.diagnosis import gains, thresholds
from hpcncf_analysis.diagnosis.evidence import RankTimes

DOCS = Path(__file__).parents[2] / "docs"
LEFT, _, LEFT_AT_WORST = gains.VECTORIZED
GAINED, GAINED_AT_BEST, GAINED_AT_WORST = gains.CACHES
SAMPLED, _, SAMPLED_AT_WORST = gains.SAMPLED_LEFT
CACHES = f"{gains.CORE_CACHES_MIB:g} MiB"
ROWS = f"{gains.ROWS_INPUT:g} input + other + "

METRICS = [
    f"{LEFT:g} of the input stays.",
    f"slower beside them, too, by {GAINED_AT_WORST:g} to {GAINED_AT_BEST:g} |",
    f"that was {gains.WARM_PASSES:g} of the reference engine's own forward passes",
    f": {gains.COLD_PASSES:g} passes (",
    f"Its input is {gains.ROWS_INPUT:g} of the reference engine's",
    f"for a row {gains.CAUGHT_UP:g} of a forward pass of an instance",
    f": {gains.EXCHANGED:g} passes in all (",
    f"in place of all items: {SAMPLED:g} of its seconds stays |",
    f"at worst {gains.SERIAL_LEFT[2]:g} of what idled stays |",
]
DIAGNOSIS = [
    f"{LEFT:g} input + (1 - input) / {GAINED:g}; no {GAINED:g} where the optimiser walks more "
    f"than {CACHES}",
    f"{LEFT_AT_WORST:g} of the input stays, and the rest gains nothing; none stays, and the rest "
    f"gains {GAINED_AT_BEST:g} |",
    f"workers' CPU time, less {thresholds.WORKER_START_S:g} s for each that was started",
    f"{ROWS}({gains.COLD_PASSES:g} + {gains.CAUGHT_UP:g} rows of the tables / instances of an "
    f"epoch) forward; {gains.WARM_PASSES:g} for {gains.COLD_PASSES:g} where the optimiser walks "
    f"less than {CACHES};",
    f"| {gains.ROWWISE:g} either way |",
    f"{ROWS}({gains.EXCHANGED:g} + {gains.CAUGHT_UP:g} rows of the tables / a rank's instances",
    f"| {gains.EXCHANGE:g} either way |",
    f"| up to {gains.SERIAL_LEFT[2]:g} of the rest stays |",
    f"| 1 - {1 - SAMPLED:g} evaluation:",
    f"| {1 - SAMPLED_AT_WORST:g} to all of it |",
    f"| up to {gains.SAVED_LEFT[2]:g} of it stays |",
]


def told(document: str) -> str:
    """The document without its line breaks."""
    return " ".join((DOCS / document).read_text().split())


@pytest.mark.parametrize("words", METRICS)
def test_where_the_constants_come_from_is_told_of_those_in_use(words: str) -> None:
    assert words in told("metrics.md")


@pytest.mark.parametrize("words", DIAGNOSIS)
def test_formulas_are_told_with_the_constants_in_use(words: str) -> None:
    assert words in told("diagnosis.md")


def test_the_example_worked_by_hand_is_what_comes_out() -> None:
    """128 MiB of 16 bytes each are 8 Mi parameters."""
    phases = {"input": 0.01, "forward": 0.04, "other": 0.01}
    first, second = (
        gains.rowwise(
            evidence(
                phases=phases,
                parameters=128 * 2**20 // gains.OPTIMISED_BYTES,
                table_rows=200_000,
                ranks=(RankTimes(0, "node1", 95.0, 0.0, instances=instances),),
            )
        )
        for instances in (400_000, 4_000_000)
    )
    passes = f"({gains.COLD_PASSES:g} + {gains.CAUGHT_UP:g} x 200,000 / 400,000)"
    assert (
        f"L = {gains.ROWS_INPUT * 0.01:g} + 0.01 + {passes} x 0.04 = {1 / first.factor:.3f}, the "
        f"factor {first.factor:.1f}, between {first.low:.1f} and {first.high:.1f}."
    ) in told("metrics.md")
    more = gains.COLD_PASSES + gains.CAUGHT_UP / 20
    assert (
        f"4 million instances it is 1 / (0.014 + {more:.2f} x 0.04) = {second.factor:.1f}."
    ) in told("metrics.md")
