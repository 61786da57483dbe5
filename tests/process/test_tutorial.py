"""The tutorial's commands print what its page shows, as far as machines and moments agree, and as
fewer rows may differ."""

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
def test_the_outputs_of_the_page_are_printed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = run_tutorial.PAGE.read_text()
    prepare = run_tutorial.prepare

    def of_fewer_rows(folder: Path) -> None:
        prepare(folder)
        for program in folder.glob("*.py"):
            text = program.read_text()
            assert text.count("n=40_000") == 1
            program.write_text(text.replace("n=40_000", "n=10_000"))

    monkeypatch.setattr(run_tutorial, "prepare", of_fewer_rows)
    # torch's second thread would wait in a loop for a core that a neighbour uses.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
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
    for outputs_of_one in (shown, printed):
        losses = [numbers(r"loss (\S+)", output) for output in outputs_of_one]
        assert [len(each) for each in losses] == [0, 1, 1, 0, 10]
        first = [each[0] for each in losses if each]
        assert first == pytest.approx([first[0]] * 3, abs=0.01)
        assert losses[4] == sorted(losses[4], reverse=True)
    assert "1 allocated, 1 usable" in fast
    assert numbers(r"CPU +(\S+)% on average", shown[4])[0] >= 90
    ((naive_ms,), (fast_ms,)) = (numbers(r"steps of (\S+) ms", each) for each in (naive, fast))
    assert naive_ms > 5 * fast_ms
