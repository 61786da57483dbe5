"""Runs that are killed at random end complete; KILLS=1000 injects so many faults, not a few."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests import kills

SEED = int(os.environ.get("KILLS_SEED") or 0)


def test_commands_and_a_queue_survive_a_few_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # a queue of its own
    if number := os.environ.get("KILLS"):
        seen = kills.main(int(number), SEED)
        assert not seen.problems, "\n".join(seen.problems)
        return
    monkeypatch.setattr(kills, "SIGNALS", (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
    seen, dice = kills.Seen(), random.Random(SEED)
    commands, queue = tmp_path / "commands", tmp_path / "queue"
    commands.mkdir()
    queue.mkdir()
    kills.attack_commands(commands, 4, dice, seen)
    wanted = {seed: kills.expected(seed) for seed in (1, 2)}
    kills.attack_queue(queue, kills.PROGRAM.format(seeds=[1, 2]), wanted, 3, dice, seen)
    assert not seen.problems, f"KILLS_SEED={SEED}: {seen.faults}: " + "\n".join(seen.problems)
    assert seen.faults
