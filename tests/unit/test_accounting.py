"""Slurm's accounting of steps, as sacct printed it on a real Slurm 22.05."""

from __future__ import annotations

from pathlib import Path

import make_results
import pytest

from hpcncf.records.schema import RankRecord
from hpcncf.slurm.accounting import Account, disagreements, mebibytes, parse_accounts, step_at

# `sacct --duplicates`: an array of two, whose first element was requeued once.
SAID = """\
1_0|REQUEUED|1795279771|1795279800|29|00:20.163|
1_0.batch|CANCELLED|1795279771|1795279801|30|00:00.017|3896K
1_0.0|CANCELLED|1795279772|1795279801|29|00:20.146|150000K
1_0|COMPLETED|1795279871|1795279893|22|00:19.163|
1_0.extern|COMPLETED|1795279871|1795279893|22|00:00.001|0
1_0.0|COMPLETED|1795279872|1795279893|21|00:19.144|153364K
1_1|RUNNING|1795279871|Unknown|21|00:00:00|
1_1.0|RUNNING|1795279872|Unknown|20|00:00:00|
2||Unknown|Unknown|0|00:00:00|
"""


def test_only_the_steps_of_srun_are_read_each_start_of_them() -> None:
    found = parse_accounts(SAID)
    assert set(found) == {"1_0", "1_1"}
    assert [step.state for step in found["1_0"]] == ["CANCELLED", "COMPLETED"]
    assert [step.cpu_s for step in found["1_0"]] == [20.146, 19.144]
    assert found["1_0"][1].max_rss_mib == pytest.approx(149.77, abs=0.01)
    (running,) = found["1_1"]
    assert (running.ended, running.max_rss_mib) == (None, None)


@pytest.mark.parametrize(
    ("moment", "cpu_s"),
    [
        (1795279773.5, 20.146),
        (1795279874.0, 19.144),
        (1795279860.0, 19.144),
        (1795270000.0, None),  # long before every step
    ],
)
def test_an_attempt_belongs_to_the_start_that_held_it(moment: float, cpu_s: float | None) -> None:
    step = step_at(parse_accounts(SAID)["1_0"], moment)
    assert (step and step.cpu_s) == cpu_s


@pytest.mark.parametrize(
    ("text", "expected"), [("2048K", 2), ("1.5M", 1.5), ("2G", 2048), ("0", None), ("16?", None)]
)
def test_memory_of_every_form_is_read_and_none_is_not_zero(
    text: str, expected: float | None
) -> None:
    assert mebibytes(text) == expected


def step(**changes: object) -> Account:
    known = {"state": "COMPLETED", "started": 0.0, "ended": 100.0, "elapsed_s": 100.0}
    return Account(**(known | {"cpu_s": 100.0, "max_rss_mib": 250.0} | changes))  # type: ignore[arg-type]


def ranks(
    folder: Path, cpu_s: float, memory_mib: float, number: int = 2, **changes: object
) -> list[RankRecord]:
    """Of the largest rank, and smaller others."""
    record = make_results.rank_record(make_results.plan_of(make_results.demo(folder)).runs[0], 0)
    return [
        record.model_copy(
            update={
                "cpu": record.cpu.model_copy(update={"user_s": cpu_s / number, "system_s": 0.0}),
                "memory": record.memory.model_copy(
                    update={"anonymous_peak_mib": memory_mib / (rank + 1)}
                ),
                **changes,
            }
        )
        for rank in range(number)
    ]


CPU = "103.0 CPU seconds in the records, 100.0 in Slurm's accounting"
MEMORY = "220.0 MiB of memory in the records, 250.0 in Slurm's accounting"


@pytest.mark.parametrize(
    ("cpu_s", "memory_mib", "slurms", "said"),
    [
        (100.0, 250.0, {}, []),
        (101.9, 270.0, {}, []),
        (98.1, 230.0, {}, []),
        (103.0, 250.0, {}, [CPU]),
        (100.0, 220.0, {}, [MEMORY]),
        (100.0, 300.0, {}, []),
        (3.9, 250.0, {"cpu_s": 3.0}, []),  # a second is no difference
        (1.0, 1.0, {"elapsed_s": 59.0}, None),
        (1.0, 1.0, {"cpu_s": None}, None),
    ],
)
def test_figures_that_differ_are_named(
    tmp_path: Path,
    cpu_s: float,
    memory_mib: float,
    slurms: dict[str, object],
    said: list[str] | None,
) -> None:
    assert disagreements(ranks(tmp_path, cpu_s, memory_mib), step(**slurms)) == said
    assert disagreements([], step()) is None


def test_hpcncfs_own_process_beside_a_command_makes_no_difference(tmp_path: Path) -> None:
    assert len(disagreements(ranks(tmp_path, 4.2, 250.0), step(cpu_s=3.0))) == 1
    small = ranks(tmp_path, 100.0, 120.0, training=None)
    assert disagreements(small, step(cpu_s=105.9, max_rss_mib=180.0)) == []
    assert len(disagreements(small, step(cpu_s=106.3, max_rss_mib=220.0))) == 2
