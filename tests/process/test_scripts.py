"""The batch script of an array: what is printed is what is sent, and values stay values."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import FakeSlurm
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from docs.generate import SCRIPTS
from hpcncf.errors import UsageError
from hpcncf.job import load
from hpcncf.job.plan import Run, expand_job
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.launch.submit import submit
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import leave_plan
from hpcncf.records.submissions import user
from hpcncf.slurm.batch_script import Source, text, text_byhand
from hpcncf.slurm.site import (
    DEAF_AT_FIRST,
    Site,
    anchored,
    load_sites,
    modules,
    parameters,
    python_request,
    setup,
    teardown,
    templates,
)

JobFile = Callable[[str], Path]
DATA = Path(__file__).parents[1] / "data"
EVERYTHING = """\
partition: short,long
account: lab
qos: high
constraint: intel&avx512
reservation: the course
memory: mem_per_cpu
modules: [gcc/12.2, python]
venv: ~/env s/hpcncf
setup: ['ulimit -n 4096']
teardown: ['rm -rf "$TMPDIR/cache"']
environment: {GREETING: "it's $(two) words"}
container: apptainer exec --nv '/images/my image.sif'
srun_args: [--cpu-bind=cores]
additional_parameters: {no-requeue: true, comment: 'a "b" #c'}
array_parallelism: 7
signal_delay_s: 90
mail_user: me@lab.org
mail_type: [END, FAIL]
interface: ib0
"""
# What the fake Slurm knows of it.
KNOWN_HERE = re.sub("(?m)^(partition|account|qos|constraint|reservation): .*\n", "", EVERYTHING)


def sent(path: Path, folder: Path) -> tuple[JobSpec, ResultPaths]:
    job = anchored(load.load_job(path), path.parent)
    paths = ResultPaths(folder)
    plan = leave_plan(paths, job, load.build_plan(job, path))
    submit(paths, job, plan, "slurm")
    return job, paths


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("folder", ["results", "it's $(touch pwned) here"])
def test_what_is_printed_is_sent_byte_by_byte(
    job_file: JobFile, fake_slurm: FakeSlurm, repeats: int, folder: str
) -> None:
    path = job_file(f"site: ./some.yaml\nrepeats: {repeats}\n")
    (path.parent / "some.yaml").write_text(KNOWN_HERE)
    job, paths = sent(path, path.parent / folder)
    logs = paths.submitit(user())
    assert fake_slurm.submitted == [text(logs, job, job.resources, repeats)]


def test_the_script_of_a_site_that_sets_everything(job_file: JobFile) -> None:
    path = job_file("site: ./all.yaml\n")
    (path.parent / "all.yaml").write_text(EVERYTHING)
    job = anchored(load.load_job(path), path.parent)
    assert text(Path("/shared/results"), job, job.resources, 2) == (DATA / "site.sh").read_text()


def test_a_script_is_printed_where_there_is_no_slurm(
    job_file: JobFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load.load_job(job_file(""))
    monkeypatch.setenv("PATH", "")
    assert text(Path("/nowhere"), job, job.resources, 1).startswith("#!/bin/bash\n")


@pytest.mark.parametrize("folder", ["50%", "back\\slash", "two\nlines"])
def test_a_folder_whose_name_slurm_reads_otherwise_is_refused(
    job_file: JobFile, tmp_path: Path, folder: str
) -> None:
    job = load.load_job(job_file(""))
    with pytest.raises(UsageError, match=r"Slurm interprets .*Choose --results"):
        text(tmp_path / folder, job, job.resources, 1)


VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    st.dictionaries(st.from_regex(r"V[A-Z0-9_]{1,8}", fullmatch=True), VALUES, max_size=4),
)
def test_no_value_of_a_variable_breaks_out_into_the_shell(variables: dict[str, str]) -> None:
    lines = setup(Resources(), Site(environment=variables))
    shown = bash("\n".join([*lines, "env -0"]))
    found = dict(entry.split("=", 1) for entry in shown.split("\0") if "=" in entry)
    assert {name: found.get(name) for name in variables} == variables


PATHS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20
)


@given(PATHS, PATHS)
def test_no_path_or_container_breaks_out_into_the_shell(name: str, image: str) -> None:
    site = Site(venv=f"/{name}", container=shlex.join(["apptainer", "exec", image]))
    shown = bash(f"printf '%s\\0' {python_request(site)}")
    assert shown.split("\0") == ["apptainer", "exec", image, f"/{name}/bin/python", ""]


def bash(script: str, **variables: str) -> str:
    """What it prints, with nothing in its environment but these."""
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


def test_a_path_below_home_is_of_whoever_runs_it() -> None:
    site = Site(venv="~/my env")
    assert (
        bash(f"printf %s {python_request(site)}", HOME="/home/me") == "/home/me/my env/bin/python"
    )


def test_what_the_submitting_shell_knew_of_another_job_is_forgotten() -> None:
    leaked = {
        "RANK": "3",
        "MASTER_ADDR": "elsewhere",
        "HPCNCF_ATTEMPT": "2",
        "SRUN_CPUS_PER_TASK": "1",
        "SLURM_CPU_BIND": "mask_cpu:0x1",
        "SLURM_CPU_BIND_TYPE": "mask_cpu:",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_MEM_PER_CPU": "500",
        "SLURM_TRES_PER_TASK": "cpu:1",
        "SLURM_EXPORT_ENV": "NONE",
        "SUBMITIT_EXECUTOR": "local",
    }
    kept = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "2", "MINE": "1"}
    lines = setup(Resources(), Site())
    shown = bash("\n".join([*lines, "env"]), **leaked, **kept).splitlines()
    names = {line.partition("=")[0] for line in shown}
    assert names & set(leaked) == set()
    assert set(kept) <= names


def test_what_the_site_asks_of_slurm_is_not_forgotten() -> None:
    asked = setup(Resources(), Site(additional_parameters={"hint": "nomultithread"}))
    assert "SLURM_HINT" not in " ".join(asked)
    assert "SLURM_HINT" in " ".join(setup(Resources(), Site()))


@pytest.mark.parametrize("lines", [["true"], ["false", "true"]])
def test_a_job_ends_as_its_ranks_did_whatever_comes_after(lines: list[str]) -> None:
    script = "\n".join(["(exit 5)", *teardown(lines)])
    assert subprocess.run(["bash", "-c", script], check=False).returncode == 5


def test_a_module_that_cannot_be_loaded_ends_the_job() -> None:
    lines = modules(["gcc/12"])
    script = "\n".join(["module() { [ $1 = purge ]; }", *lines, "echo started"])
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


@pytest.mark.parametrize(
    ("site", "why"),
    [
        ({"partition": "a\n#SBATCH --uid=0"}, "one line without control characters"),
        ({"account": "back\\slash"}, "backslashes"),
        ({"additional_parameters": {"comment": "a\nb"}}, "one line"),
        ({"additional_parameters": {"cpus_per_task": 1}}, "cpus-per-task comes from the job file"),
        ({"additional_parameters": {"partition": "p"}}, "key of its own: partition"),
        ({"additional_parameters": {"a b": "c"}}, "pattern"),
        ({"srun_args": ["-c1"]}, "-c comes from the job file's resources and is passed to srun"),
        ({"srun_args": ["-c", "1"]}, "-c comes from"),
        ({"srun_args": ["--cpus-per-task=1"]}, "--cpus-per-task comes from"),
        ({"srun_args": ["--cpus-per=1"]}, "--cpus-per-task comes from"),
        ({"srun_args": ["--output=x"]}, "looks for the logs"),
        ({"environment": {"A B": "c"}}, "pattern"),
        ({"environment": {"RANK": "0"}}, "RANK is set by Slurm or the launcher"),
        ({"environment": {"SRUN_CPUS_PER_TASK": "1"}}, "is set by Slurm"),
        ({"venv": "env"}, "absolute path"),
        ({"container": "apptainer 'exec"}, "not readable as a command: No closing quotation"),
        ({"container": " "}, "expected a command"),
        ({"conda": "a", "venv": "/b"}, "conda and venv both choose"),
        ({"conda": "a", "container": "b"}, "conda and container both choose"),
        ({"mail_user": "me"}, "mail_user needs mail_type"),
        ({"mail_type": ["SOMETIMES"]}, "'BEGIN', 'END'"),
        ({"modules": ["a b"]}, "pattern"),
        ({"interface": "ib0; rm"}, "pattern"),
        ({"memory": "mem_per_core"}, "'mem_per_cpu'"),
    ],
)  # fmt: skip
def test_what_contradicts_or_breaks_a_line_is_refused(site: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Site.model_validate(site)
    assert why in str(refused.value)


@pytest.mark.parametrize("argument", ["--cpu-bind=cores", "--exact", "--nodelist=n1", "--mpi=pmi2"])
def test_srun_may_be_reported_what_does_not_contradict(argument: str) -> None:
    assert argument in parameters(Resources(), Site(srun_args=[argument]), "a")["slurm_srun_args"]


def test_the_python_that_submits_starts_the_ranks_unless_the_site_says_otherwise() -> None:
    assert python_request(Site()) == shlex.quote(sys.executable)
    assert python_request(Site(conda="ncf")) == "python3"
    assert python_request(Site(container="podman run image")) == "podman run image python3"


def planned(asked: dict[str, object], repeats: int = 1) -> tuple[JobSpec, list[Run]]:
    job = JobSpec(
        name="tiny",
        data=Data(path="/d"),
        resources=Resources.model_validate(asked),
        repeats=repeats,
    )
    return job, expand_job(job, {}).runs


def by_hand(asked: dict[str, object], site: Site, repeats: int = 1) -> str:
    job, runs = planned(asked, repeats)
    return text_byhand(job, site, runs, Source(Path("/j.yaml"), Path("/r")))


def flags(script: str) -> set[str]:
    return {line for line in script.splitlines() if line.startswith("#SBATCH")}


def test_by_hand_slurm_is_asked_for_the_same(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(EVERYTHING)
    asked: dict[str, object] = {"nodes": 2, "gpus_per_node": 1, "mem_gb": 0.5}
    job, _ = planned(asked)
    job = job.model_copy(update={"site": str(tmp_path / "all.yaml"), "exclusive": True})
    for repeats in (1, 3):
        runs = expand_job(job.model_copy(update={"repeats": repeats}), {}).runs
        source = Source(Path("/j.yaml"), Path("/r"))
        plain = flags(text_byhand(job, load_sites(job.site), runs, source))
        ours = flags(text(tmp_path, job, job.resources, repeats))
        files = ("#SBATCH --output", "#SBATCH --error", "#SBATCH --wckey")
        assert {line for line in plain if not line.startswith(files)} == {
            line for line in ours if not line.startswith(files)
        }


def test_by_hand_memory_per_node_is_the_same_amount() -> None:
    assert "#SBATCH --mem=1536M" in by_hand({"mem_gb": 1.5}, Site())


def test_by_hand_each_task_of_an_array_has_a_run_of_its_own() -> None:
    script = by_hand({}, Site(), repeats=3)
    _, runs = planned({}, repeats=3)
    chosen = script[script.index("runs=(") : script.index("srun")]
    found = [bash(f"SLURM_ARRAY_TASK_ID={n}\n{chosen}\necho $run").strip() for n in range(3)]
    assert found == [run.id for run in runs]


@pytest.mark.parametrize(
    ("site", "agent", "rank"),
    [
        (Site(), sys.executable, sys.executable),
        (Site(venv="/env"), "/env/bin/python", "/env/bin/python"),
        (Site(container="box run"), "box run python3", "python3"),
    ],
)
def test_by_hand_torchruns_ranks_take_no_module_of_the_folder_they_start_in(
    site: Site, agent: str, rank: str
) -> None:
    script = by_hand({"tasks_per_node": 2, "launcher": "torchrun"}, site)
    assert f"    {agent} -P -u \\\n    -m torch.distributed.run" in script
    assert f"    --no-python {rank} -P -u \\\n    -m hpcncf.worker" in script


def test_by_hand_a_value_in_a_comment_stays_on_its_line() -> None:
    job, (run,) = planned({})
    varied = run.model_copy(update={"varied": {"data.path": "/a\nrm -rf ~"}})
    source = Source(Path("/j.yaml"), Path("/r"))
    script = text_byhand(job, Site(), [varied, varied], source)
    assert f"    {run.id}  # path=/a?rm -rf ~ repeat=0\n" in script


@given(PATHS, PATHS, PATHS)
def test_by_hand_no_path_or_setting_breaks_out_into_the_shell(
    file: str, results: str, setting: str
) -> None:
    job, runs = planned({})
    source = Source(Path("/j", file), Path("/r", results), [setting])
    script = text_byhand(job, Site(container="env"), runs, source)
    shown = bash("srun() { printf '%s\\0' \"$@\"; }\n" + script).split("\0")
    assert shown[shown.index("-m") + 1 :] == [
        *("hpcncf.worker", str(Path("/j", file)), "--run-id", runs[0].id),
        *("--results", str(Path("/r", results)), "-s", setting, ""),
    ]


def test_every_example_of_a_plain_script_is_read_by_bash() -> None:
    found = sorted(templates().glob("*.sbatch"))
    assert {path.stem for path in found} == set(SCRIPTS)
    for path in found:
        subprocess.run(["bash", "-n", path], check=True)


def test_a_warning_does_not_end_a_python_that_is_still_starting() -> None:
    """Preempted so early a job is Slurm's to put back; ended by the signal it would have failed."""
    early = "import os, signal; os.kill(os.getpid(), signal.SIGUSR2); print('alive')"
    line = f"{DEAF_AT_FIRST} {shlex.join([sys.executable, '-c', early])}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n")
