"""Sites become submitit's parameters; what squeue and sacct print becomes our words."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcncf.errors import UsageError
from hpcncf.slurm import sites, states
from hpcncf.slurm.request import Site, parameters
from hpcncf.slurm.states import STATES, read_sacct, read_squeue
from hpcncf.spec import Data, JobSpec, Resources

TEMPLATES = sorted(sites.templates().glob("*.yaml"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_every_template_loads(path: Path) -> None:
    assert sites.load(path.stem) == sites.load(str(path))


def test_there_are_templates() -> None:
    assert {"cpu", "gpu"} <= {path.stem for path in TEMPLATES}


def test_srun_is_always_told_the_cores_and_to_end_with_a_failed_rank() -> None:
    told = parameters(Resources(cpus_per_task=3), Site(srun_args=["--mpi=none"]), "a")
    assert told["slurm_srun_args"] == ["--cpus-per-task=3", "--kill-on-bad-exit=1", "--mpi=none"]


def test_what_is_not_asked_for_is_not_told() -> None:
    told = parameters(Resources(), Site(memory="none"), "a")
    assert not {"mem_gb", "gpus_per_node", "slurm_partition", "slurm_exclusive"} & set(told)


def test_a_site_and_a_job_ask_together() -> None:
    site = Site(
        partition="short",
        account="lab",
        setup=["module load python"],
        environment={"GREETING": "two words"},
        additional_parameters={"no-requeue": True},
    )
    resources = Resources(nodes=2, tasks_per_node=4, gpus_per_node=4, mem_gb=8, timeout_min=5)
    told = parameters(resources, site, "a", array_parallelism=7, exclusive=True)
    assert told["slurm_setup"] == [
        "module load python",
        "export OMP_NUM_THREADS=1",
        "export MKL_NUM_THREADS=1",
        "export HPCNCF_LAUNCHED_BY=slurm",
        "export GREETING='two words'",
    ]
    assert (
        told
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
            "slurm_additional_parameters": {"no-requeue": True},
        }
        == told
    )


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
        sites.load(str(path))


def test_an_unknown_site_is_told_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no site 'cpus'.*'cpu'.*Known sites: .*cpu, .*gpu"):
        sites.load("cpus")


def test_a_users_own_site_goes_before_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    sites.personal().mkdir(parents=True)
    (sites.personal() / "cpu.yaml").write_text("partition: mine\n")
    assert sites.load("cpu").partition == "mine"


def test_a_sites_path_counts_from_the_job_file(tmp_path: Path) -> None:
    job = JobSpec(name="a", site="site.yaml", data=Data(path="d"))
    assert sites.anchored(job, tmp_path).site == str(tmp_path / "site.yaml")
    named = JobSpec(name="a", site="cpu", data=Data(path="d"))
    assert sites.anchored(named, tmp_path) == named


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("COMPLETED", "completed"),
        ("CANCELLED by 1000", "cancelled"),
        ("CANCELLED+", "cancelled"),
        ("OUT_OF_ME+", "unknown"),
        ("TIMEOUT", "timeout"),
        ("NODE_FAIL", "node_failed"),
        ("PREEMPTED", "stopped"),
        ("SOMETHING_NEW", "unknown"),
        ("", "unknown"),
    ],
)
def test_slurms_words_are_ours(word: str, state: str) -> None:
    assert states.state_of(word, "1").state == state


def test_an_unknown_word_is_said() -> None:
    assert "SOMETHING_NEW" in states.state_of("SOMETHING_NEW", "7").reason


def test_a_waiting_job_says_why() -> None:
    found = read_squeue("8_0|RUNNING|None\n8_1|PENDING|Resources\n\nnonsense\n")
    assert {job: (one.state, one.reason) for job, one in found.items()} == {
        "8_0": ("running", ""),
        "8_1": ("pending", "Slurm job 8_1: PENDING (Resources)"),
    }


def test_the_steps_tell_what_the_job_does_not() -> None:
    """Rows as sacct of Slurm 22.05 prints them: a job row FAILED, its step OUT_OF_MEMORY."""
    found = read_sacct(
        "66_0|COMPLETED|0:0\n66_0.batch|COMPLETED|0:0\n66_0.0|COMPLETED|0:0\n"
        "66_1|FAILED|1:0\n66_1.batch|FAILED|1:0\n66_1.0|OUT_OF_MEMORY|0:125\n"
        "66_2|FAILED|11:0\n66_2.0|CANCELLED|0:11\n"
        "66_3|CANCELLED by 0|0:0\n66_[4-5%2]|PENDING|0:0\n"
    )
    assert {job: one.state for job, one in found.items()} == {
        "66_0": "completed",
        "66_1": "out_of_memory",
        "66_2": "failed",
        "66_3": "cancelled",
        "66_[4-5%2]": "pending",
    }
    assert found["66_2"].reason == "Slurm job 66_2: FAILED (exit code 11)"


def test_every_state_that_slurm_documents_has_a_word_of_ours() -> None:
    assert len(STATES) >= 24
    assert "unknown" not in STATES.values()
