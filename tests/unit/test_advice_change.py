"""What is changed after a single run, and what then is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make_results
import pytest
from make_configurations import configuration

from hpcncf.collect.collect import collect
from hpcncf.job.load import load_job
from hpcncf.job.spec import JobSpec, Resources
from hpcncf.paths import ResultPaths
from hpcncf_analysis import configurations as summary
from hpcncf_analysis.advice.next_job import build_advice, read_request, write_advice
from hpcncf_analysis.advice.remedy import Change, build_change
from hpcncf_analysis.advice.request import build_request
from hpcncf_analysis.diagnosis.evidence import Cause, CoreCounts, Diagnosis, Finding, Gain

FIVE = {"cores": 5, "cores_used": 1.02, "cpu_efficiency": 0.204}


def changed(found: Diagnosis | None = None, job: Any = None, **row: Any) -> Change | None:
    one = configuration("a", **(FIVE | row))
    asked = Resources(cpus_per_task=5, mem_gb=4.0)
    wanted = build_request(one, asked)
    plain = {"name": "a-next", "data": {"path": "/data"}, "resources": wanted.resources}
    return build_change(one, JobSpec.model_validate(plain | (job or {})), asked, wanted, found)


def diagnosed(
    changes: dict[str, Any], gain: Gain | None = None, cause: Cause = "python_input"
) -> Diagnosis:
    finding = Finding(cause, 0.6, "time", (), "Do it.", changes, gain)
    return Diagnosis("0123456789ab", "cause", finding, (), CoreCounts(5, 5, 1))


def test_cores_that_idled_are_asked_for_no_more() -> None:
    """1.02 of 5 cores were used: one is tried, for which five times the time is left."""
    told = changed(job={"training": {"threads": 5}})
    assert told is not None
    assert told.job.resources.cpus_per_task == 1
    assert told.job.training.threads == "auto"
    assert told.costs is None
    assert told.request.expected_s == pytest.approx(5 * 40)
    assert told.job.resources == told.request.resources
    assert "resources.cpus_per_task 5 → 1" in told.text
    assert "1.02 of 5 cores were used" in told.text


@pytest.mark.parametrize(
    "row",
    [{"cpu_efficiency": 0.9, "cores_used": 4.5}, {"others_cores": 2.0}, {"cores_used": 4.2}],
    ids=["busy", "disturbed", "no core less"],
)
def test_cores_that_were_needed_stay(row: dict[str, Any]) -> None:
    assert changed(**row) is None


def test_a_remedy_that_a_setting_applies_is_applied() -> None:
    gain = Gain(2.5, 2.0, 3.0)
    told = changed(
        diagnosed({"training.loader": "vectorized"}, gain),
        job={"training": {"loader": "per_sample"}},
    )
    assert told is not None
    assert told.job.training.loader == "vectorized"
    assert told.job.resources.cpus_per_task == 5, "one remedy at a time"
    assert told.job.resources.mem_gb == 4.0, "no less than it had"
    assert told.text == (
        "Not run yet: training.loader per_sample → vectorized, the remedy of python_input; "
        "predicted: 2.50× the instances per second (2.00× to 3.00×)."
    )
    assert told.request.expected_s == 40.0, "a gain that may not come shortens no limit"
    assert told.costs == pytest.approx((1 / 2.5, 1 / 3, 1 / 2))


def test_fewer_cores_that_are_predicted_to_cost_a_third_take_longer() -> None:
    """0.4 of the core-hours at most, on a fifth of the cores: twice the time."""
    gain = Gain(0.3, 0.2, 0.4, "core_hours")
    told = changed(diagnosed({"resources.cpus_per_task": 1}, gain))
    assert told is not None
    assert told.request.expected_s == pytest.approx(80.0)
    assert "0.30× the core-hours" in told.text
    assert told.costs == (0.3, 0.2, 0.4)


@pytest.mark.parametrize(
    "changes",
    [
        {"training.num_workers": 2},
        {"training.loader": "vectorized"},
        {"training.no_such_setting": 1},
    ],
    ids=["conflict", "the same", "unknown"],
)
def test_where_no_setting_helps_nothing_is_changed(changes: dict[str, Any]) -> None:
    """Not the cores either: one thing at a time."""
    assert changed(diagnosed(changes)) is None


@pytest.mark.parametrize(
    ("cause", "fewer"),
    [("one_core_confinement", False), ("neighbour_load", False), ("serial_step", True)],
)
def test_idle_cores_are_given_up_unless_the_cause_hid_the_need(cause: Cause, fewer: bool) -> None:
    assert (changed(diagnosed({}, cause=cause)) is not None) == fewer


def study(tmp_path: Path, finding: Finding, **settings: Any) -> tuple[ResultPaths, dict[str, Any]]:
    """The demo's configurations, or those given, every run with the same finding."""
    paths = make_results.demo(tmp_path, repeats=1, **settings)
    make_results.complete(paths)
    runs = make_results.plan_of(paths).runs
    cores = CoreCounts(1, 1, 1)
    return paths, {run.id: Diagnosis(run.id, "cause", finding, (), cores) for run in runs}


GAIN = Gain(2.0, 1.5, 2.5)


def test_a_studys_best_is_asked_for_with_its_remedy_and_the_way_back(tmp_path: Path) -> None:
    finding = Finding(
        "dense_optimizer", 0.6, "time", (), "Do it.", {"training.engine": "rowwise"}, GAIN
    )
    alone = [point for point in make_results.POINTS if point["resources.tasks_per_node"] == 1]
    paths, diagnoses = study(tmp_path, finding, points=alone)
    knee, fastest = write_advice(
        summary.group_configurations(collect(paths).runs), paths, diagnoses
    )
    for written in (knee, fastest):
        assert load_job(written.job).training.engine == "rowwise"
        assert written.advice.sure.sure == "unproven"
    told = " ".join(knee.advice.reasons)
    assert "Not run yet: training.engine reference → rowwise, the remedy of dense_optimizer" in told
    assert (
        "what was measured instead, submit it with -s training.engine=reference. Unproven: it and "
        "the runner-up, 2 cores · vectorized, ran once each" in told
    )


@pytest.mark.parametrize(
    ("changes", "gain"),
    [
        ({"training.loader": "vectorized"}, GAIN),
        ({"resources.tasks_per_node": 1, "resources.cpus_per_task": 2}, GAIN),
        ({"training.engine": "rowwise"}, None),
        ({"training.lr": 0.01}, Gain(1.5, 0.8, 2.5)),
    ],
    ids=["the same", "measured, and no better", "nothing predicted", "may be slower"],
)
def test_a_studys_best_stays_as_it_is(
    tmp_path: Path, changes: dict[str, Any], gain: Gain | None
) -> None:
    finding = Finding("serial_step", 0.6, "cores", (), "Do it.", changes, gain)
    paths, diagnoses = study(tmp_path, finding)
    written = write_advice(summary.group_configurations(collect(paths).runs), paths, diagnoses)
    assert all(one.advice.changed is None for one in written)


def test_what_saves_core_hours_is_no_remedy_for_the_fastest(tmp_path: Path) -> None:
    """Two ranks of one core are the fastest; one rank of four is dearer, and has four to give."""
    points = [{"resources.cpus_per_task": 1}, {"resources.cpus_per_task": 4}]
    fewer = Gain(0.5, 0.4, 0.6, "core_hours")
    finding = Finding(
        "serial_step", 0.6, "cores", (), "Do it.", {"resources.cpus_per_task": 2}, fewer
    )
    paths, diagnoses = study(tmp_path, finding, points=points)
    configurations, asked = summary.group_configurations(collect(paths).runs), read_request(paths)
    fastest = build_advice(configurations, asked, diagnoses, "fastest")
    assert fastest is not None
    assert (fastest.job.resources.cpus_per_task, fastest.changed) == (4, None)
    cheapest = build_advice(configurations, asked, diagnoses, "cheapest")
    assert cheapest is not None
    assert cheapest.job.resources.cpus_per_task == 2


def test_as_measured_nothing_is_changed(tmp_path: Path) -> None:
    """What `hpcncf tune` verified is asked for, whatever cores idled."""
    paths = make_results.demo(tmp_path, points=[make_results.POINTS[1]])
    make_results.complete(paths)
    configurations, asked = summary.group_configurations(collect(paths).runs), read_request(paths)
    changed, kept = (
        build_advice(configurations, asked, as_measured=each) for each in (False, True)
    )
    assert changed is not None
    assert changed.job.resources.cpus_per_task == 1
    assert kept is not None
    assert (kept.job.resources.cpus_per_task, kept.changed) == (2, None)
