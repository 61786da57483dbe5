"""The tutorial's programs have the causes that its page names, and the remedies take them away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs import run_tutorial


@pytest.mark.slow
def test_the_naive_program_waits_for_its_input_and_the_changed_one_does_not(
    tmp_path: Path,
) -> None:
    run_tutorial.prepare(tmp_path)

    def shares(command: str) -> tuple[dict[str, float], float]:
        """Phase -> share of the time, and the seconds of a step."""
        run_tutorial.run(f"hpcncf run --quiet --results r -- {command}; hpcncf collect r", tmp_path)
        (record,) = tmp_path.glob("r/runs/*/attempt-1/rank-0.json")
        (program,) = json.loads(record.read_text())["program"]
        record.unlink()
        phases = {name: part["seconds"] for name, part in program["phases"].items()}
        total = program["seconds"]
        return {name: s / total for name, s in phases.items()}, total / program["steps"]

    before, naive_s = shares("python train.py 1")
    after, step_s = shares("python faster.py 10")
    assert before["input"] > 0.5
    assert after.get("input", 0.0) < 0.3
    assert naive_s > 5 * step_s


def test_every_command_of_the_page_has_its_output() -> None:
    text = run_tutorial.PAGE.read_text()
    found = list(run_tutorial.BLOCK.finditer(text))
    assert len(found) == 5
    assert all(block["output"].strip() for block in found)
