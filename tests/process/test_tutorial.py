"""The tutorial's commands print what its page shows, as far as machines and moments agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import run_tutorial


def outputs(page: str) -> list[str]:
    return [found["output"] for found in run_tutorial.BLOCK.finditer(page)]


def numbers(pattern: str, output: str) -> list[float]:
    return [float(text.replace(",", "")) for text in re.findall(pattern, output)]


@pytest.mark.slow
def test_the_outputs_of_the_page_are_printed_again(tmp_path: Path) -> None:
    page = run_tutorial.PAGE.read_text()
    shown, printed = outputs(page), outputs(run_tutorial.regenerated(page, tmp_path))
    assert len(printed) == 5
    explain, naive, workers, diff, fast = printed
    assert [explain, diff] == [shown[0], shown[3]]

    causes = [re.findall(r"Cause \d +(.+?) \(", output) for output in printed]
    # Not which is first: neighbours on the cores make some phases dearer than others.
    assert "input is made on the CPU, one sample at a time" in causes[1]
    assert "train.py:35 __getitem__" in naive
    assert "workers=2: applied: DataLoader" in workers
    assert "input is made on the CPU, one sample at a time" not in causes[4]
    for old, new in zip(shown, printed, strict=True):
        loss = r"loss (\S+)"
        assert numbers(loss, new) == pytest.approx(numbers(loss, old), abs=0.01)
    assert "1 allocated, 1 usable" in fast
    assert numbers(r"CPU +(\S+)% on average", shown[4])[0] >= 90
    ((naive_ms,), (fast_ms,)) = (numbers(r"steps of (\S+) ms", each) for each in (naive, fast))
    assert naive_ms > 5 * fast_ms
