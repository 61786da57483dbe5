"""Sites become submitit's parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.errors import UsageError
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.slurm.site import Site, anchored, load_sites, parameters, personal, templates

TEMPLATES = sorted(templates().glob("*.yaml"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_template_loads(path: Path) -> None:
    assert load_sites(path.stem) == load_sites(str(path))


def test_there_are_templates() -> None:
    assert {"cpu", "gpu"} <= {path.stem for path in TEMPLATES}


def test_srun_is_always_reported_the_cores_and_to_end_with_a_failed_rank() -> None:
    seen = parameters(Resources(cpus_per_task=3), Site(srun_args=["--mpi=none"]), "a")
    assert seen["slurm_srun_args"] == ["--cpus-per-task=3", "--kill-on-bad-exit=1", "--mpi=none"]


def test_what_is_not_asked_for_is_not_reported() -> None:
    seen = parameters(Resources(), Site(memory="none"), "a")
    assert not {"mem_gb", "gpus_per_node", "slurm_partition", "slurm_exclusive"} & set(seen)


def test_a_site_and_a_job_ask_together() -> None:
    site = Site(
        partition="short",
        account="lab",
        reservation="course",
        additional_parameters={"no-requeue": True, "contiguous": False},
        mail_user="me@lab.org",
        mail_type=["END", "FAIL"],
    )
    resources = Resources(nodes=2, tasks_per_node=4, gpus_per_node=4, mem_gb=8, timeout_min=5)
    seen = parameters(resources, site, "a", array_parallelism=7, exclusive=True)
    assert (
        seen
        | {
            "nodes": 2,
            "tasks_per_node": 4,
            "gpus_per_node": 4,
            "mem_gb": 8.0,
            "timeout_min": 5,
            "slurm_partition": "short",
            "slurm_account": "lab",
            "slurm_exclusive": True,
            "slurm_array_parallelism": 7,
            "slurm_additional_parameters": {"no-requeue": True, "reservation": "course"},
            "slurm_mail_user": "me@lab.org",
            "slurm_mail_type": "END,FAIL",
        }
        == seen
    )


@pytest.mark.parametrize(
    ("form", "mem_gb", "asked"),
    [
        ("mem", 8, {"mem_gb": 8.0}),
        ("mem", 0.0001, {"mem_gb": 1 / 1024}),  # 0 would ask for the whole node's
        ("mem", 1.0001, {"mem_gb": 1025 / 1024}),
        ("mem_per_cpu", 1, {"slurm_mem_per_cpu": "171MB"}),
        ("mem_per_gpu", 1, {"slurm_mem_per_gpu": "342MB"}),
        ("none", 1, {}),
    ],
)
def test_memory_is_asked_for_in_the_form_that_a_site_takes(
    form: str, mem_gb: float, asked: dict[str, object]
) -> None:
    shape = Resources(tasks_per_node=3, cpus_per_task=2, gpus_per_node=3, mem_gb=mem_gb)
    seen = parameters(shape, Site.model_validate({"memory": form}), "a")
    assert {key: value for key, value in seen.items() if "mem" in key} == asked


def test_without_a_gpu_no_memory_is_asked_for_per_gpu() -> None:
    seen = parameters(Resources(), Site(memory="mem_per_gpu"), "a")
    assert [key for key in seen if "mem" in key] == []


def test_one_torchrun_has_the_cores_of_all_its_ranks() -> None:
    shape = Resources(nodes=2, tasks_per_node=4, cpus_per_task=3, launcher="torchrun")
    seen = parameters(shape, Site(), "a")
    assert (seen["nodes"], seen["tasks_per_node"], seen["cpus_per_task"]) == (2, 1, 12)
    assert "--cpus-per-task=12" in seen["slurm_srun_args"]
    assert "export OMP_NUM_THREADS=3" in seen["slurm_setup"]


@pytest.mark.parametrize(
    ("limit_min", "runs", "asked_s", "seen_s"), [(1, 1, 30, 10), (3, 1, 30, 30), (1, 4, 90, 40)]
)
def test_slurm_warns_within_the_time_that_all_runs_of_a_task_have(
    limit_min: int, runs: int, asked_s: int, seen_s: int
) -> None:
    shape = Resources(timeout_min=limit_min, runs_per_task=runs)
    seen = parameters(shape, Site(signal_delay_s=asked_s), "a")
    assert (seen["timeout_min"], seen["slurm_signal_delay_s"]) == (limit_min * runs, seen_s)


@pytest.mark.usefixtures("fake_slurm")
def test_submitit_takes_every_parameter_that_a_site_can_set(tmp_path: Path) -> None:
    import submitit

    site = Site(
        partition="p",
        account="a",
        qos="q",
        constraint="c",
        setup=["true"],
        environment={"A": "b"},
        srun_args=["--mpi=none"],
        additional_parameters={"nice": 1},
    )
    executor = submitit.AutoExecutor(tmp_path, cluster="slurm")
    executor.update_parameters(**parameters(Resources(gpus_per_node=1), site, "a", exclusive=True))


def test_an_unknown_key_of_a_site_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("partitoin: short\n")
    with pytest.raises(UsageError, match=r"mine\.yaml: unknown key 'partitoin'.*'partition'"):
        load_sites(str(path))


def test_an_unknown_site_is_reported_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no site 'cpus'.*'cpu'.*Known sites: .*cpu, .*gpu"):
        load_sites("cpus")


def test_a_users_own_site_goes_before_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    personal().mkdir(parents=True)
    (personal() / "cpu.yaml").write_text("partition: mine\n")
    assert load_sites("cpu").partition == "mine"


def test_a_sites_path_counts_from_the_job_file(tmp_path: Path) -> None:
    job = JobSpec(name="a", site="site.yaml", data=Data(path="d"))
    assert anchored(job, tmp_path).site == str(tmp_path / "site.yaml")
    named = JobSpec(name="a", site="cpu", data=Data(path="d"))
    assert anchored(named, tmp_path) == named
