"""Predicted gains: the documents show the constants of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from make_evidence import evidence

from hpcncf_analysis.diagnosis import expected_gain as gains
from hpcncf_analysis.diagnosis import thresholds
from hpcncf_analysis.diagnosis.evidence import RankTimes

DOCS = Path(__file__).parents[2] / "docs"
LEFT, _, LEFT_AT_WORST = gains.VECTORIZED
GAINED, GAINED_AT_BEST, GAINED_AT_WORST = gains.CACHES
SAMPLED, _, SAMPLED_AT_WORST = gains.SAMPLED_LEFT
FORMULAS = {
    "python_input": [LEFT, GAINED, gains.CORE_CACHES_MIB, LEFT_AT_WORST, GAINED_AT_BEST],
    "worker_overhead": [thresholds.WORKER_START_S],
    "dense_optimizer": [
        *(gains.ROWS_INPUT, gains.COLD_PASSES, gains.CAUGHT_UP, gains.WARM_PASSES),
        *(gains.CORE_CACHES_MIB, gains.ROWWISE),
    ],
    "dense_optimizer` on ranks": [
        *(gains.ROWS_INPUT, gains.EXCHANGED, gains.CAUGHT_UP, gains.EXCHANGE),
    ],
    "serial_step": [gains.SERIAL_LEFT[2]],
    "evaluation_bound": [1 - SAMPLED, 1 - SAMPLED_AT_WORST],
    "checkpoint_bound": [gains.SAVED_LEFT[2]],
}
REASONS = {
    "loader: vectorized": [LEFT, GAINED_AT_WORST, GAINED_AT_BEST],
    "engine: rowwise": [
        *(gains.WARM_PASSES, gains.COLD_PASSES, gains.ROWS_INPUT, gains.CAUGHT_UP),
    ],
    "sync: rows": [gains.EXCHANGED],
    "cpus_per_task: 1": [gains.SERIAL_LEFT[2]],
    "evaluation: sampled": [SAMPLED],
}


def numbers(document: str, heading: str, first_cell: str) -> set[float]:
    """The numbers in the row of the table below the heading whose first cell begins so."""
    section = (DOCS / document).read_text().partition(f"## {heading}\n")[2]
    rows = [line for line in section.splitlines() if line.startswith(f"| `{first_cell}")]
    assert rows, f"{document} has no row {first_cell}"
    return {float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", rows[0])}


@pytest.mark.parametrize("cause", FORMULAS)
def test_formulas_have_the_constants_in_use(cause: str) -> None:
    found = numbers("diagnosis.md", "Predicted gains", cause)
    assert {round(constant, 6) for constant in FORMULAS[cause]} <= found


@pytest.mark.parametrize("remedy", REASONS)
def test_reasons_have_the_constants_in_use(remedy: str) -> None:
    found = numbers("metrics.md", "What a remedy brings", remedy)
    assert {round(constant, 6) for constant in REASONS[remedy]} <= found


def test_the_gain_of_rowwise_worked_by_hand() -> None:
    """128 MiB of 16 bytes each are 8 Mi parameters; L = 0.004 + 0.01 + passes x 0.04."""
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
    assert 1 / first.factor == pytest.approx(0.014 + (3 + 0.67 / 2) * 0.04)
    assert 1 / second.factor == pytest.approx(0.014 + (3 + 0.67 / 20) * 0.04)
    assert (first.low, first.high) == pytest.approx((first.factor / 1.3, first.factor * 1.3))
