"""Cores that cannot be used, are fought for, used by others, or idle."""

from __future__ import annotations

from typing import Any

import pytest
from make_evidence import command, evidence

from hpcncf_analysis.diagnosis.evidence import Evidence
from hpcncf_analysis.diagnosis.rules_cores import (
    neighbour_load,
    one_core_confinement,
    oversubscribed,
    serial_step,
)


def test_one_core_usable_of_five_allocated_costs_four_fifths_of_the_cores() -> None:
    found = one_core_confinement(evidence(allocated=5, usable=1))
    assert found is not None
    assert (found.share, found.of) == (0.8, "cores")
    assert "5 cores allocated, 1 usable" in found.evidence
    assert "srun -c 5" in found.remedy


def test_all_cores_usable_is_no_confinement() -> None:
    assert one_core_confinement(evidence(allocated=5, used=1.0)) is None


def test_a_quota_that_ranks_share_confines_them_to_what_was_used() -> None:
    found = one_core_confinement(evidence(allocated=2, used=1.0, throttled_s=80.0))
    assert found is not None
    assert found.share == 0.5
    assert "80 s" in " ".join(found.evidence)


def bound(**changes: Any) -> Evidence:
    told: dict[str, Any] = {"affinity_changed": True, "runqueue_s": 90.0, "runnable": 1.9}
    return evidence(allocated=2, used=1.0, **(told | changes))


def test_threads_that_wait_beside_an_idle_core_were_bound_to_one() -> None:
    found = one_core_confinement(bound())
    assert found is not None
    assert found.share == 0.5


@pytest.mark.parametrize(
    "changes", [{"affinity_changed": False}, {"runqueue_s": 5.0}, {"others_cores": 1.0}]
)
def test_a_core_that_idles_for_another_reason_is_no_binding(changes: dict[str, float]) -> None:
    assert one_core_confinement(bound(**changes)) is None


def test_eight_threads_that_want_two_cores_wait_three_quarters_of_their_time() -> None:
    found = oversubscribed(evidence(allocated=2, runnable=8.0))
    assert found is not None
    assert (found.share, found.of) == (0.75, "time")
    assert found.evidence[0] == "8.0 threads wanted to run at a time on 2 usable cores"


def test_without_a_measurement_the_threads_asked_for_count() -> None:
    assert oversubscribed(evidence(allocated=2, runnable=None, threads=2)) is None
    found = oversubscribed(evidence(allocated=2, runnable=None, threads=4))
    assert found is not None
    assert found.share == 0.5


@pytest.mark.parametrize("runnable", [1.0, 2.0, 2.4])
def test_as_many_threads_as_cores_and_a_helper_are_no_oversubscription(runnable: float) -> None:
    assert oversubscribed(evidence(allocated=2, runnable=runnable)) is None


def test_a_neighbour_costs_the_core_time_that_our_threads_waited_for() -> None:
    found = neighbour_load(evidence(used=0.4, others_cores=0.6, runnable=1.0, runqueue_s=60.0))
    assert found is not None
    assert found.share == pytest.approx(0.6)
    assert "0.6 of its 1 core," in found.evidence[0]


def test_a_neighbour_on_a_core_that_we_did_not_want_costs_nothing() -> None:
    assert neighbour_load(evidence(allocated=2, used=1.0, others_cores=1.0)) is None


def test_threads_that_wait_for_their_own_siblings_blame_no_neighbour() -> None:
    told = evidence(allocated=2, others_cores=0.3, runnable=8.0, runqueue_s=600.0)
    assert neighbour_load(told) is None


def test_what_the_hypervisor_took_counts_as_a_neighbour() -> None:
    found = neighbour_load(evidence(steal=0.4))
    assert found is not None
    assert (found.share, len(found.evidence)) == (0.4, 1)


def test_one_thread_on_four_cores_leaves_three_quarters_idle() -> None:
    found = serial_step(evidence(allocated=4, used=1.0, threads=1))
    assert found is not None
    assert found.share == pytest.approx(0.675)
    assert found.of == "cores"
    assert found.changes == {"resources.cpus_per_task": 1}
    assert found.gain is not None
    assert (found.gain.factor, found.gain.what) == (0.25, "core_hours")


def test_cores_that_idle_while_one_thread_makes_the_input_are_not_the_steps_fault() -> None:
    phases = {"input": 0.9, "forward": 0.05, "backward": 0.05}
    assert serial_step(evidence(allocated=2, used=1.0, phases=phases)) is None


def test_a_program_that_waits_is_not_serial() -> None:
    assert serial_step(command(allocated=2, used=0.3)) is None


def test_one_thread_that_a_neighbour_starves_is_serial_still() -> None:
    told = evidence(allocated=2, used=0.4, runnable=1.0, runqueue_s=60.0, phases={})
    found = serial_step(told)
    assert found is not None
    assert found.share == pytest.approx(0.5)


def test_one_core_per_rank_cannot_be_serial() -> None:
    assert serial_step(evidence(allocated=1, used=0.9)) is None
