"""`hpcncf apply`: a job's needs become lines of its batch script, or a reason why they do not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from make_results import claim, command_plan, complete, leave, plan_of

from hpcncf.batch.edits import apply_edits
from hpcncf.batch.resize import RequestedAmount, Target, format_limit, limit_of, resize
from hpcncf.batch.script import read_batch_script
from hpcncf.cli import main

SLURM = """\
#!/bin/bash
#SBATCH --cpus-per-task=16  # all of a socket
#SBATCH --mem=64G
#SBATCH --time=1-00:00:00
export OMP_NUM_THREADS=16
srun -c 16 python train.py --workers 16
"""
ONE_CORE = Target(cores=RequestedAmount(1, "one core"), had_cores=16)


def changed(text: str, target: Target) -> list[str]:
    """The new lines that differ from the old ones."""
    resized = resize(read_batch_script(text), target)
    after = apply_edits(text, resized.edits).splitlines()
    return [line for line in after if line not in text.splitlines()]


def left(text: str, target: Target) -> str:
    resized = resize(read_batch_script(text), target)
    assert not resized.edits
    return " ".join(resized.left)


def test_all_lines_that_depend_on_cores_follow() -> None:
    assert changed(SLURM, ONE_CORE) == [
        "#SBATCH --cpus-per-task=1  # all of a socket",
        "export OMP_NUM_THREADS=1",
        "srun -c 1 python train.py --workers 16",
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("#SBATCH -c 16 --mem=9G\n", ["#SBATCH -c 2 --mem=9G"]),
        ("#SBATCH -c16 --mem=9G\n", ["#SBATCH -c2 --mem=9G"]),
        ("#SBATCH --mem=9G --cpus-per-task 16\n", ["#SBATCH --mem=9G --cpus-per-task 2"]),
        (
            "#SBATCH --cpus-per-task=16\n#SBATCH --mem-per-cpu=2G\n",
            ["#SBATCH --cpus-per-task=2", "#SBATCH --mem-per-cpu=16G"],
        ),
        (
            "#SBATCH --ntasks=16\n#SBATCH --mem=9G\npython train.py\n",
            ["#SBATCH --ntasks=1", "#SBATCH --cpus-per-task=2"],
        ),
        (
            '#BSUB -n 16\n#BSUB -R "span[hosts=1]"\nexport OMP_NUM_THREADS=$LSB_DJOB_NUMPROC\n',
            ["#BSUB -n 2"],
        ),
        (
            "#PBS -l select=1:ncpus=16:mem=64gb\n#PBS -l walltime=9:00:00\n",
            ["#PBS -l select=1:ncpus=2:mem=64gb"],
        ),
        ("#PBS -l nodes=1:ppn=16,walltime=9:00:00\n", ["#PBS -l nodes=1:ppn=2,walltime=9:00:00"]),
        (
            "#PBS -l select=1:ncpus=16:mem=64gb:ompthreads=16\n",
            ["#PBS -l select=1:ncpus=2:mem=64gb:ompthreads=2"],
        ),
        (
            "#$ -pe smp 16\n#$ -l h_vmem=2G\n",
            ["#$ -pe smp 2", "#$ -l h_vmem=16384M"],
        ),
    ],
)
def test_cores_in_each_scheduler(text: str, lines: list[str]) -> None:
    target = Target(cores=RequestedAmount(2, "two"), had_cores=16)
    assert changed(f"#!/bin/bash\n{text}", target) == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("#SBATCH --mem=64G\n", ["#SBATCH --mem=6G"]),
        ("#SBATCH --mem=65536 -c 4\n", ["#SBATCH --mem=6G -c 4"]),
        ("#SBATCH -c 4 --mem-per-cpu=16G\n", ["#SBATCH -c 4 --mem-per-cpu=1536M"]),
        ("#SBATCH -c 4\n", ["#SBATCH --mem=6G"]),
        ("#PBS -l select=1:ncpus=4:mem=64gb\n", ["#PBS -l select=1:ncpus=4:mem=6gb"]),
        ("#$ -pe smp 4 -l h_vmem=16G\n", ["#$ -pe smp 4 -l h_vmem=1536M"]),
    ],
)
def test_memory_in_each_scheduler(text: str, lines: list[str]) -> None:
    target = Target(memory_mib=RequestedAmount(6144, "peak"))
    assert changed(f"#!/bin/bash\n{text}", target) == lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("#SBATCH --time=30\n", ["#SBATCH --time=2-06:00:00"]),
        ("#SBATCH -c 4\n", ["#SBATCH --time=2-06:00:00"]),
        ("#BSUB -W 4:00\n", ["#BSUB -W 54:00"]),
        ("#PBS -l walltime=4:00:00\n", ["#PBS -l walltime=54:00:00"]),
        ("#PBS -lwalltime=4:00:00\n", ["#PBS -lwalltime=54:00:00"]),
        ("#PBS -l nodes=1:ppn=4,walltime=4:00:00,mem=1gb\n",
         ["#PBS -l nodes=1:ppn=4,walltime=54:00:00,mem=1gb"]),
        ("#$ -l h_rt=4:00:00 -l h_vmem=1G\n", ["#$ -l h_rt=54:00:00 -l h_vmem=1G"]),
    ],
)  # fmt: skip
def test_time_in_each_scheduler(text: str, lines: list[str]) -> None:
    target = Target(limit_s=RequestedAmount(54 * 3600, "longest"))
    assert changed(f"#!/bin/bash\n{text}", target) == lines


@pytest.mark.parametrize(
    ("text", "target", "why"),
    [
        (
            SLURM,
            Target(cores=RequestedAmount(1, ""), had_cores=32),
            "32 cores, and the script asks for 16",
        ),
        ("#!/bin/bash\n#SBATCH -c 16\n", ONE_CORE, "default per core would shrink"),
        ("#!/bin/bash\n#SBATCH --mem=9G\necho\n#SBATCH -c 16\n", ONE_CORE, "not read as it is"),
        ("#!/bin/bash\n#SBATCH -c 16 --mem=9G model\n", ONE_CORE, "not read as it is written"),
        ('#!/bin/bash\n#BSUB -n 16 -R "rusage[mem=4GB]"\n', ONE_CORE, "per slot at some sites"),
        ("#!/bin/bash\n#PBS -l select=2:ncpus=16\n", ONE_CORE, "several chunks"),
        ("#!/bin/bash\n#$ -pe mpi 16\n", ONE_CORE, "slots of mpi may be ranks"),
        (
            "#!/bin/bash\n#SBATCH -c 16 --mem=8G\n#SBATCH hetjob\n#SBATCH -c 2 --mem=8G\n",
            ONE_CORE,
            "line 3: parts of a heterogeneous job",
        ),
        ("#!/bin/bash\n#SBATCH -c 16 --mem=9G --mincpus=16\n", ONE_CORE, "--mincpus decides"),
        (
            '#!/bin/bash\n#SBATCH -c 16 --mem=9G\nCMD="srun -c 16 python x.py"\n$CMD\n',
            ONE_CORE,
            "line 3 has an srun with cores of its own",
        ),
        (
            '#!/bin/bash\n#SBATCH -c 16 --mem=9G\nO="-c 16"\nsrun $O python x.py\n',
            ONE_CORE,
            "line 4 has an srun with cores of its own",
        ),
        ("#!/bin/bash\n#PBS -l nodes=1:ppn=16,pmem=4gb\n", ONE_CORE, "pmem is memory by core"),
        (
            "#!/bin/bash\n#BSUB -W 4:00/node1\n",
            Target(limit_s=RequestedAmount(60, "")),
            "-W 4:00/node1: not understood",
        ),
        (
            "#!/bin/bash\n#SBATCH --mem=64G\n",
            Target(memory_mib=RequestedAmount(6144, "killed at 4 GiB", is_least=True)),
            "as much or more already; killed at 4 GiB",
        ),
        (
            "#!/bin/bash\n#SBATCH -c 4 --mem-per-cpu=4G\n",
            Target(memory_mib=RequestedAmount(6144, "killed", is_least=True)),
            "memory: the script asks for as much or more already",
        ),
        (
            "#!/bin/bash\n#SBATCH -t 2-0\n",
            Target(limit_s=RequestedAmount(7200, "ended at its limit of 1 h", is_least=True)),
            "time: the script asks for as much or more already; ended at its limit",
        ),
        ("#!/bin/bash\n#SBATCH --mem=0\n", Target(memory_mib=RequestedAmount(9, "")), "no amount"),
        ("#!/bin/bash\n#BSUB -M 9GB\n", Target(memory_mib=RequestedAmount(9, "")), "LSF counts it"),
        ("#!/bin/bash\necho\n", ONE_CORE, "no directives"),
    ],
)
def test_what_is_not_certain_is_left(text: str, target: Target, why: str) -> None:
    assert why in left(text, target)


def test_threads_that_a_variable_sets_are_named() -> None:
    text = "#!/bin/bash\n#SBATCH -c 16 --mem=9G\nN=16\nexport OMP_NUM_THREADS=$N\npython x.py\n"
    resized = resize(read_batch_script(text), ONE_CORE)
    assert [each.new for each in resized.edits] == [("#SBATCH -c 1 --mem=9G",)]
    assert resized.left == [
        "threads: line 4 sets OMP_NUM_THREADS to 16 by a variable, more than 1 core: change it by "
        "hand"
    ]


def test_lsf_slots_may_shrink_if_their_memory_is_enough_either_way() -> None:
    text = '#!/bin/bash\n#BSUB -n 16\n#BSUB -R "span[hosts=1] rusage[mem=4GB]"\npython x.py\n'
    target = Target(RequestedAmount(2, "two"), RequestedAmount(6144, "peak"), had_cores=16)
    assert changed(text, target) == ["#BSUB -n 2"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("#SBATCH --time=90", 5400),
        ("#SBATCH -t 10:30", 630),
        ("#SBATCH -t 1:00:00", 3600),
        ("#SBATCH -t 2-12", 216_000),
        ("#SBATCH -t 1-02:03:04", 93_784),
        ("#BSUB -W 4:30", 16_200),
        ("#PBS -l walltime=4:30:00", 16_200),
        ("#$ -l h_rt=3600", 3600),
        ("#SBATCH -c 4", None),
    ],
)
def test_limits_are_read_as_their_scheduler_reads_them(text: str, seconds: int | None) -> None:
    assert limit_of(read_batch_script(f"#!/bin/bash\n{text}\n")) == seconds


def test_limit_is_written_in_whole_minutes() -> None:
    assert format_limit(61, "slurm") == "00:02:00"
    assert format_limit(25 * 3600, "slurm") == "1-01:00:00"
    assert format_limit(61, "lsf") == "0:02"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sh"
    path.write_text(SLURM.replace("16", "5"))
    return path


def test_run_gives_cores_and_memory_with_their_evidence(
    tmp_path: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = command_plan(tmp_path)
    complete(paths)
    assert main(["apply", str(paths.folder), str(script)]) == 0
    said = capsys.readouterr()
    assert "+#SBATCH --cpus-per-task=1  # all of a socket\n" in said.out
    assert "+#SBATCH --mem=1G\n" in said.out
    assert "hpcncf run: used 1 of 5 cores on average" in said.out
    assert "time: 1 run ended within half of the limit" in said.err
    applied = subprocess.run(
        ["patch", "-p0", str(script)], input=said.out, text=True, check=True, capture_output=True
    )
    assert "patching" in applied.stdout
    assert main(["lint", str(script)]) in (0, 1)
    assert "--cpus-per-task=1 " in script.read_text()


def test_job_that_was_observed_is_read_from_its_records(
    tmp_path: Path,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = command_plan(tmp_path / "results")
    complete(paths)
    (run,) = plan_of(paths).runs
    job = claim(run).model_copy(update={"slurm_job_id": "4242"})
    (paths.run(run.id).attempts()[-1].folder / "claim.json").write_text(job.model_dump_json())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["apply", "4242", str(script)]) == 0
    assert "hpcncf run: used 1 of 5 cores on average" in capsys.readouterr().out
    assert main(["apply", "4243", str(script)]) == 2
    assert "there is no sacct here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exit_code": 1, "outcome": "failed"}, "no run came to its end"),
        ({"elapsed_s": 20.0}, "too short"),
    ],
)
def test_weak_evidence_is_refused(
    changes: dict[str, object],
    why: str,
    tmp_path: Path,
    script: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = command_plan(tmp_path)
    leave(paths, plan_of(paths).runs[0], **changes)
    before = script.read_text()
    assert main(["apply", str(paths.folder), str(script), "--write"]) == 3
    said = capsys.readouterr()
    assert (said.out, script.read_text()) == ("", before)
    assert why in said.err


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_written_script_keeps_mode_line_ends_and_a_backup(
    end: str, tmp_path: Path, script: Path
) -> None:
    complete(command_plan(tmp_path))
    before = script.read_bytes().replace(b"\n", end.encode())
    script.write_bytes(before)
    script.chmod(0o750)
    link = tmp_path / "link.sh"
    link.symlink_to(script.name)
    (tmp_path / "job.sh.before").write_text("an older one")
    assert main(["apply", str(tmp_path / "results"), str(link), "--write"]) == 0
    assert link.is_symlink()
    assert script.stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "job.sh.before1").read_bytes() == before
    assert (tmp_path / "job.sh.before").read_text() == "an older one"
    after = script.read_bytes()
    assert after.count(b"\r\n") == before.count(b"\r\n")
    assert after.count(b"\n") == before.count(b"\n")
    assert b"--cpus-per-task=1 " in after


SEFF = """\
Job ID: 4242
State: COMPLETED (exit code 0)
Nodes: 1
Cores per node: 5
CPU Utilized: 01:02:00
CPU Efficiency: 20.67% of 05:00:00 core-walltime
Job Wall-clock time: 01:00:00
Memory Utilized: 5.00 GB
Memory Efficiency: 7.81% of 64.00 GB
"""


def test_summary_of_the_scheduler_sizes_memory_but_not_cores(
    tmp_path: Path, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seff.txt").write_text(SEFF)
    assert main(["apply", str(tmp_path / "seff.txt"), str(script), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [each["new"] for each in said["edits"]] == [["#SBATCH --mem=7G"]]
    assert said["edits"][0]["reason"].startswith("job 4242: Memory: at most 5 GiB of 64 GiB")
    assert any(each.startswith("cores: job 4242") for each in said["left"])


@pytest.mark.parametrize(
    ("evidence", "name", "why"),
    [
        ("absent/run", "job.sh", "no such file or folder"),
        ("4242", "job.sh", "there is no sacct here"),
        ("empty.txt", "job.sh", "no figures of a job"),
        (".", "job.sh", "no record in it"),
        ("empty.txt", "empty.txt", "not a batch script"),
        ("empty.txt", ".", "cannot be read"),
        ("empty.txt", "large.sh", "more than 4 MB"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(
    evidence: str,
    name: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    (tmp_path / "job.sh").write_text(SLURM)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "large.sh").write_bytes(b"#SBATCH -c 4\n" * 400_000)
    assert main(["apply", evidence, name, "--write"]) == 2
    assert why in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty.txt", "job.sh", "large.sh"]
