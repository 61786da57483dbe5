"""Prices of an hour, and whether the faster hardware is worth its own."""

from __future__ import annotations

from typing import Any

import pytest
from make_configurations import configuration, row

from hpcncf_analysis.prices import Prices, is_faster_worth_it, price_table, priced_rows

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
PRICES = Prices({"core": 0.01, "A100": 1.2, "H100": 2.4, "EPYC 7763": 0.9}, "EUR")


@pytest.mark.parametrize(
    ("changes", "hourly"),
    [
        ({"cores": 4}, 0.04),
        ({"cores": 8, "gpus_per_node": 2, "gpu_model": A100}, 2 * 1.2 + 0.08),
        ({"cores": 8, "gpus_per_node": 1, "gpu_model": H100, "runs_per_gpu": 2}, 1.2 + 0.08),
        ({"cores": 8, "gpus_per_node": 1, "gpu_model": "NVIDIA V100"}, None),
        ({"cpu_model": "AMD EPYC 7763 64-Core Processor", "nodes": 2}, 1.8),
        ({"cpu_model": "AMD EPYC 7763 64-Core Processor", "runs_per_node": 4}, 0.225),
    ],
)
def test_an_hour_has_the_price_of_its_node_or_of_its_cores_and_gpus(
    changes: dict[str, Any], hourly: float | None
) -> None:
    found = PRICES.hourly(row(**changes))
    assert found == (None if hourly is None else pytest.approx(hourly))
    if "cpu_model" not in changes:
        by_node = Prices({"node": 5.0, **PRICES.of_an_hour})
        assert by_node.hourly(row(**changes)) in (5.0, 2.5)


def on(model: str, seconds: float, label: str = "a") -> Any:
    return configuration(label, seconds=seconds, cores=8, gpus_per_node=1, gpu_model=model)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # An hour costs 1.28 and 2.48: 36 s are 0.0128 EUR, 18 s are 0.0124.
        (18.0, ["is worth its price", "0.0124 EUR against 0.0128 EUR", "2.00× the speed"]),
        # 24 s are 0.016533 EUR: 0.003733 more for 12 s less, which is 1.12 an hour.
        (24.0, ["only if an hour saved is worth 1.12 EUR", "1.50× the speed, 1.29× the cost"]),
        (36.0, []),
    ],
)
def test_a_faster_gpu_is_worth_its_price_or_not(seconds: float, expected: list[str]) -> None:
    rows = [
        each for one in (on(A100, 36.0), on(H100, seconds)) for each in priced_rows(one, PRICES)
    ]
    found = is_faster_worth_it(rows, PRICES)
    assert len(found) == bool(expected)
    for text in expected:
        assert text in found[0]
        assert found[0].startswith(H100)


def test_repeats_on_two_gpus_are_priced_apart() -> None:
    gpu = {"cores": 8, "gpus_per_node": 1}
    rows = [row(36.0, gpu_model=A100, **gpu), row(18.0, gpu_model=H100, **gpu)]
    table = price_table(priced_rows(configuration("a", rows), PRICES), PRICES)
    assert table
    assert [cells[1:] for cells in table.rows] == [
        [H100, "2.48", "18", "0.0124"],
        [A100, "1.28", "36", "0.0128"],
    ]


def test_without_a_price_nothing_is_compared() -> None:
    rows = priced_rows(on(A100, 36.0), Prices({"H100": 2.4}))
    assert (rows, price_table(rows, Prices())) == ([], None)
