"""Runs on a cluster on which everything breaks at random: at the end each has one complete record.

`make chaos` has sixty runs; CHAOS_RUNS, CHAOS_SEED and CHAOS_FAULTS say otherwise. What broke when
stands in the output, after the seed.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm.chaos import checks, work
from slurm.chaos.breaking import Breaking, Scene, shuffled
from slurm.chaos.watching import Watching
from slurm.conftest import PATIENCE_S, Cluster, User, user_of

pytestmark = pytest.mark.slurm

RUNS = int(os.environ.get("CHAOS_RUNS") or 8)
SEED = int(os.environ.get("CHAOS_SEED") or secrets.randbelow(10**6))
FAULTS = int(os.environ.get("CHAOS_FAULTS") or max(4, RUNS * 2 // 3))
ROUNDS = 6


@pytest.fixture
def user(cluster: Cluster) -> Iterator[User]:
    """In a folder that can be full."""
    folder = cluster.small / "chaos"
    folder.mkdir()
    user = user_of(cluster, folder)
    (folder / "site.yaml").write_text("partition: short\n")
    yield user
    cluster.mend()
    user.leaves()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_every_run_ends_with_one_complete_record(
    user: User, tiny_data: Path, tmp_path: Path
) -> None:
    jobs = work.jobs(RUNS)
    breaking = Breaking(
        Scene(user.cluster, user, random.Random(SEED)), shuffled(random.Random(SEED))
    )
    breaking.say(f"CHAOS_RUNS={RUNS} CHAOS_SEED={SEED} CHAOS_FAULTS={FAULTS}")
    beside = ThreadPoolExecutor(1)
    undisturbed = beside.submit(work.undisturbed, tmp_path, tiny_data, jobs)
    work.submits(user, tiny_data, jobs)
    try:
        with Watching(user) as watching:
            breaks(user, breaking)
        user.cluster.mend()
        breaking.say("all is mended")
        ends(user, breaking)
        checks.nothing_was_misread(watching.seen)
        checks.each_run_is_complete_once(user)
        checks.parameters_are(user, undisturbed.result())
        checks.what_was_saved_was_used(breaking.saved)
        checks.nobody_else_was_harmed(user, breaking.hit)
        checks.nothing_is_left_over(user)
        checks.tables_add_up(user)
    except BaseException:
        print("\n".join([f"CHAOS_RUNS={RUNS} CHAOS_SEED={SEED}", *breaking.seen]))
        print(work.state(user))
        if kept := os.environ.get("CHAOS_KEEP"):
            shutil.copytree(user.folder, kept, dirs_exist_ok=True)
        raise


def breaks(user: User, breaking: Breaking) -> None:
    """One fault after the other, until it is enough or there is nothing to break any more."""
    scene = breaking.scene
    work.until(user, PATIENCE_S, lambda states: "running" in states)
    left = FAULTS
    while left:
        breaking.undo_what_is_due()
        left -= breaking.one()
        pause = time.monotonic() + scene.dice.uniform(0.5, 4)
        while time.monotonic() < pause:
            breaking.undo_what_is_due()
            breaking.note_what_is_saved()
            time.sleep(0.2)
        if not scene.cluster.run("squeue", "--me", "--noheader").strip():
            breaking.say("nothing is left to break")
            break
    breaking.undo_what_is_due(everything=True)


def ends(user: User, breaking: Breaking) -> None:
    for number in range(1, ROUNDS + 1):
        states = work.until(user, 60 * RUNS, work.over)
        got = {state: states.count(state) for state in sorted(set(states))}
        breaking.say(f"round {number}: {got}")
        if set(states) == {"completed"}:
            return
        work.retries(user)
    raise AssertionError(f"not complete after {ROUNDS} rounds of retry")
