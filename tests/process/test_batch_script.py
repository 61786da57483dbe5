"""Site files and the batch scripts of arrays: printed as they are sent, and values stay values."""

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
from hpcncf.job.expand import expand_job
from hpcncf.job.plan import Run
from hpcncf.job.spec import Data, JobSpec, Resources
from hpcncf.launch.submit import submit
from hpcncf.paths import ResultPaths
from hpcncf.records.plan_file import record_plan
from hpcncf.records.submissions import user
from hpcncf.slurm.batch_script import RunSource, plain_script, script_text
from hpcncf.slurm.site import Site, load_site, personal_sites, template_folder
from hpcncf.slurm.submitit_parameters import (
    DEAF_AT_FIRST,
    module_lines,
    parameters,
    python_request,
    setup_lines,
    teardown_lines,
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
# The part that the fake Slurm knows.
KNOWN_HERE = re.sub("(?m)^(partition|account|qos|constraint|reservation): .*\n", "", EVERYTHING)
SOURCE = RunSource(Path("/j.yaml"), Path("/r"))


def planned(repeats: int = 1, **asked: object) -> tuple[JobSpec, list[Run]]:
    resources = Resources.model_validate(asked)
    job = JobSpec(name="tiny", data=Data(path="/d"), resources=resources, repeats=repeats)
    return job, expand_job(job, {}).runs


def by_hand(site: Site, repeats: int = 1, **asked: object) -> str:
    job, runs = planned(repeats, **asked)
    return plain_script(job, site, runs, SOURCE)


def bash(script: str, **variables: str) -> str:
    """Its output, with only these variables in its environment."""
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


def test_templates_and_examples_are_readable() -> None:
    sites = {path.stem for path in template_folder().glob("*.yaml")}
    assert {"cpu", "gpu"} <= sites
    for name in sites:
        assert load_site(name) == load_site(str(template_folder() / f"{name}.yaml"))
    examples = sorted(template_folder().glob("*.sbatch"))
    assert {path.stem for path in examples} == set(SCRIPTS)
    for path in examples:
        subprocess.run(["bash", "-n", path], check=True)


def test_sites_are_found_by_name_and_path_and_wrong_ones_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    personal_sites().mkdir(parents=True)
    (personal_sites() / "cpu.yaml").write_text("partition: mine\n")
    assert load_site("cpu").partition == "mine", "a user's own before the template"
    with pytest.raises(UsageError, match=r"no site 'cpus'.*'cpu'.*Known sites: .*cpu, .*gpu"):
        load_site("cpus")
    (tmp_path / "wrong.yaml").write_text("partitoin: short\n")
    with pytest.raises(UsageError, match=r"wrong\.yaml: unknown key 'partitoin'.*'partition'"):
        load_site(str(tmp_path / "wrong.yaml"))
    job = JobSpec(name="a", site="site.yaml", data=Data(path="d"))
    assert load.make_paths_absolute(job, tmp_path).site == str(tmp_path / "site.yaml")
    named = JobSpec(name="a", site="cpu", data=Data(path="d"))
    assert load.make_paths_absolute(named, tmp_path).site == "cpu"


def test_a_site_and_a_job_together_make_the_request() -> None:
    site = Site(
        partition="short",
        account="lab",
        reservation="course",
        additional_parameters={"no-requeue": True, "contiguous": False},
        mail_user="me@lab.org",
        mail_type=["END", "FAIL"],
        srun_args=["--mpi=none"],
    )
    resources = Resources(
        nodes=2, tasks_per_node=4, cpus_per_task=3, gpus_per_node=4, mem_gb=8, timeout_min=5
    )
    seen = parameters(resources, site, "a", array_parallelism=7, exclusive=True)
    assert set(seen.pop("slurm_setup")) >= {"export OMP_NUM_THREADS=3"}
    assert seen == {
        "name": "a",
        "nodes": 2,
        "tasks_per_node": 4,
        "cpus_per_task": 3,
        "gpus_per_node": 4,
        "mem_gb": 8.0,
        "timeout_min": 5,
        "slurm_partition": "short",
        "slurm_account": "lab",
        "slurm_exclusive": True,
        "slurm_array_parallelism": 7,
        "slurm_signal_delay_s": 30,
        "slurm_additional_parameters": {"no-requeue": True, "reservation": "course"},
        "slurm_mail_user": "me@lab.org",
        "slurm_mail_type": "END,FAIL",
        "slurm_srun_args": ["--cpus-per-task=3", "--kill-on-bad-exit=1", "--mpi=none"],
    }
    plain = parameters(Resources(), Site(memory="none"), "a")
    assert not {"mem_gb", "gpus_per_node", "slurm_partition", "slurm_exclusive"} & set(plain)


@pytest.mark.parametrize(
    ("form", "mem_gb", "gpus", "asked"),
    [
        ("mem", 8, 3, {"mem_gb": 8.0}),
        ("mem", 0.0001, 3, {"mem_gb": 1 / 1024}),  # 0 would request the whole node's
        ("mem", 1.0001, 3, {"mem_gb": 1025 / 1024}),
        ("mem_per_cpu", 1, 3, {"slurm_mem_per_cpu": "171MB"}),
        ("mem_per_gpu", 1, 3, {"slurm_mem_per_gpu": "342MB"}),
        ("mem_per_gpu", 1, 0, {}),
        ("none", 1, 3, {}),
    ],
)
def test_memory_is_requested_in_the_form_that_a_site_takes(
    form: str, mem_gb: float, gpus: int, asked: dict[str, object]
) -> None:
    shape = Resources(tasks_per_node=3, cpus_per_task=2, gpus_per_node=gpus, mem_gb=mem_gb)
    seen = parameters(shape, Site.model_validate({"memory": form}), "a")
    assert {key: value for key, value in seen.items() if "mem" in key} == asked


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
def test_site_values_that_contradict_or_break_a_line_are_refused(
    site: dict[str, object], why: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        Site.model_validate(site)
    assert why in str(refused.value)


@pytest.mark.parametrize("argument", ["--cpu-bind=cores", "--exact", "--nodelist=n1", "--mpi=pmi2"])
def test_other_arguments_of_srun_are_passed_on(argument: str) -> None:
    assert argument in parameters(Resources(), Site(srun_args=[argument]), "a")["slurm_srun_args"]


@pytest.mark.parametrize(
    ("repeats", "folder"), [(1, "results"), (3, "results"), (3, "it's $(touch pwned) here")]
)
def test_printed_scripts_are_sent_byte_by_byte(
    job_file: JobFile, fake_slurm: FakeSlurm, repeats: int, folder: str
) -> None:
    path = job_file(f"site: ./some.yaml\nrepeats: {repeats}\n")
    (path.parent / "some.yaml").write_text(KNOWN_HERE)
    job = load.load_job(path)
    paths = ResultPaths(path.parent / folder)
    submit(paths, job, record_plan(paths, job, load.build_plan(job, path)), "slurm")
    logs = paths.submitit(user())
    assert fake_slurm.submitted == [
        script_text(logs, job, load_site(job.site), job.resources, repeats)
    ]


def test_the_script_of_a_site_that_sets_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # it is printed without Slurm, too
    (tmp_path / "all.yaml").write_text(EVERYTHING)
    job, _ = planned(mem_gb=1, timeout_min=2)
    job = job.model_copy(update={"site": str(tmp_path / "all.yaml")})
    assert (
        script_text(Path("/shared/results"), job, load_site(job.site), job.resources, 2)
        == (DATA / "site.sh").read_text()
    )


@pytest.mark.parametrize("folder", ["50%", "back\\slash", "two\nlines"])
def test_a_folder_whose_name_slurm_would_interpret_is_refused(folder: str) -> None:
    job, _ = planned()
    with pytest.raises(UsageError, match=r"Slurm interprets .*Choose --results"):
        script_text(Path("/shared") / folder, job, load_site(job.site), job.resources, 1)


TEXTS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
PATHS = st.text(TEXTS, min_size=1, max_size=20)


@given(
    st.dictionaries(st.from_regex(r"V[A-Z0-9_]{1,8}", fullmatch=True), st.text(TEXTS), max_size=4),
    PATHS,
    PATHS,
)
def test_no_variable_path_or_container_breaks_out_into_the_shell(
    variables: dict[str, str], name: str, image: str
) -> None:
    container = shlex.join(["apptainer", "exec", image])
    site = Site(environment=variables, venv=f"/{name}", container=container)
    lines = [*setup_lines(Resources(), site), f"printf '%s\\0' {python_request(site)}", "env -0"]
    shown = bash("\n".join(lines)).split("\0")
    assert shown[:4] == ["apptainer", "exec", image, f"/{name}/bin/python"]
    found = dict(entry.split("=", 1) for entry in shown[4:] if "=" in entry)
    assert {name: found.get(name) for name in variables} == variables


def test_the_python_that_submits_starts_the_ranks_unless_the_site_names_another() -> None:
    assert python_request(Site()) == shlex.quote(sys.executable)
    assert python_request(Site(conda="ncf")) == "python3"
    assert python_request(Site(container="podman run image")) == "podman run image python3"
    home = bash(f"printf %s {python_request(Site(venv='~/my env'))}", HOME="/home/me")
    assert home == "/home/me/my env/bin/python"


def test_variables_of_another_job_are_unset() -> None:
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
        "SLURM_HINT": "nomultithread",
        "SUBMITIT_EXECUTOR": "local",
    }
    kept = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "2", "MINE": "1"}
    lines = setup_lines(Resources(), Site())
    shown = bash("\n".join([*lines, "env"]), **leaked, **kept).splitlines()
    names = {line.partition("=")[0] for line in shown}
    assert names & set(leaked) == set()
    assert set(kept) <= names
    asked = setup_lines(Resources(), Site(additional_parameters={"hint": "nomultithread"}))
    assert "SLURM_HINT" not in " ".join(asked), "Slurm sets it for this job"


def test_a_script_ends_as_its_ranks_did_and_early_without_a_module() -> None:
    for lines in (["true"], ["false", "true"]):
        script = "\n".join(["(exit 5)", *teardown_lines(lines)])
        assert subprocess.run(["bash", "-c", script], check=False).returncode == 5
    script = "\n".join(["module() { [ $1 = purge ]; }", *module_lines(["gcc/12"]), "echo started"])
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_warning_does_not_end_a_python_that_is_still_starting() -> None:
    early = "import os, signal; os.kill(os.getpid(), signal.SIGUSR2); print('alive')"
    line = f"{DEAF_AT_FIRST} {shlex.join([sys.executable, '-c', early])}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_by_hand_slurm_gets_the_same_request(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(EVERYTHING)

    def flags(script: str) -> set[str]:
        lines = {line for line in script.splitlines() if line.startswith("#SBATCH")}
        return {line for line in lines if not re.match("#SBATCH --(output|error|wckey)", line)}

    for repeats in (1, 3):
        job, runs = planned(repeats, nodes=2, gpus_per_node=1, mem_gb=0.5)
        job = job.model_copy(update={"site": str(tmp_path / "all.yaml"), "exclusive": True})
        plain = plain_script(job, load_site(job.site), runs, SOURCE)
        assert flags(plain) == flags(
            script_text(tmp_path, job, load_site(job.site), job.resources, repeats)
        )
    assert "#SBATCH --mem=1536M" in by_hand(Site(), mem_gb=1.5)


def test_by_hand_each_task_of_an_array_has_a_run_of_its_own() -> None:
    """Values in comments stay on their lines."""
    job, runs = planned(3)
    runs[0] = runs[0].model_copy(update={"varied": {"data.path": "/a\nrm -rf ~"}})
    script = plain_script(job, Site(), runs, SOURCE)
    chosen = script[script.index("runs=(") : script.index("srun")]
    found = [bash(f"SLURM_ARRAY_TASK_ID={n}\n{chosen}\necho $run").strip() for n in range(3)]
    assert found == [run.id for run in runs]
    assert f"    {runs[0].id}  # path=/a?rm -rf ~ repeat=0\n" in script


@pytest.mark.parametrize(
    ("site", "agent", "rank"),
    [
        (Site(), sys.executable, sys.executable),
        (Site(venv="/env"), "/env/bin/python", "/env/bin/python"),
        (Site(container="box run"), "box run python3", "python3"),
    ],
)
def test_by_hand_torchruns_ranks_import_no_module_of_their_folder(
    site: Site, agent: str, rank: str
) -> None:
    script = by_hand(site, tasks_per_node=2, launcher="torchrun")
    assert f"    {agent} -P -u \\\n    -m torch.distributed.run" in script
    assert f"    --no-python {rank} -P -u \\\n    -m hpcncf.worker" in script


@given(PATHS, PATHS, PATHS)
def test_by_hand_no_path_or_setting_breaks_out_into_the_shell(
    file: str, results: str, setting: str
) -> None:
    job, runs = planned()
    source = RunSource(Path("/j", file), Path("/r", results), [setting])
    script = plain_script(job, Site(container="env"), runs, source)
    shown = bash("srun() { printf '%s\\0' \"$@\"; }\n" + script).split("\0")
    assert shown[shown.index("-m") + 1 :] == [
        *("hpcncf.worker", str(Path("/j", file)), "--run-id", runs[0].id),
        *("--results", str(Path("/r", results)), "-s", setting, ""),
    ]
