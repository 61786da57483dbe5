"""What `hpcncf lint` finds in batch scripts as their users post them, and how it mends them."""

from __future__ import annotations

import csv
import random
import subprocess
import time
from pathlib import Path

import pytest

from hpcncf.batch.edits import Edit, apply_edits, unified_diff
from hpcncf.cli import main
from hpcncf.cli.lint import _read
from hpcncf.lint.batch_script import check_batch_script
from hpcncf.lint.program_facts import Reader, facts_of, program_reader
from hpcncf.lint.rules import Complaint

SCRIPTS = Path(__file__).parents[1] / "data/scripts"
with (SCRIPTS / "expected.tsv").open() as table:
    EXPECTED = {
        row["file"]: row["findings"].split() for row in csv.DictReader(table, delimiter="\t")
    }


def read(path: Path) -> str:
    return path.read_bytes().decode()


def findings(text: str) -> list[str]:
    return [f"{each.line}:{each.rule}" for each in check_batch_script(text)]


def check(path: Path, text: str) -> list[Complaint]:
    """Check one of the scripts, with the programs that lie beside it."""
    return check_batch_script(text, program_reader(SCRIPTS / "programs" / path.name))


@pytest.mark.parametrize("name", EXPECTED)
def test_users_script(name: str) -> None:
    path = SCRIPTS / "users" / name
    assert [f"{each.line}:{each.rule}" for each in check(path, read(path))] == EXPECTED[name]


@pytest.mark.parametrize("path", sorted((SCRIPTS / "right").iterdir()), ids=lambda path: path.name)
def test_right_script_is_clean(path: Path) -> None:
    assert [each for each in check(path, read(path)) if each.level != "note"] == []


def test_every_script_of_users_is_expected() -> None:
    assert {path.name for path in (SCRIPTS / "users").iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_mended_script_lacks_the_finding(name: str) -> None:
    path = SCRIPTS / "users" / name
    text = read(path)
    found = check(path, text)
    edits = [edit for each in found for edit in each.edits]
    after = apply_edits(text, edits)
    mended = {each.rule for each in found if each.edits}
    mended -= {each.rule for each in found if not each.edits}
    assert not mended & {each.rule for each in check(path, after)}
    # All that no correction names is kept to the byte.
    touched = {text.split("\n")[edit.line - 1] for edit in edits if not edit.inserts}
    touched |= {line for edit in edits for line in edit.new}
    kept = [
        [line for line in each.split("\n") if line.removesuffix("\r") not in touched]
        for each in (text, after)
    ]
    assert kept[0] == kept[1] or kept[0] == [*kept[1], ""] or [*kept[0], ""] == kept[1]


def test_diff_of_fix_is_taken_by_patch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in EXPECTED:
        (tmp_path / name).write_bytes((SCRIPTS / "users" / name).read_bytes())
    assert main(["lint", "--fix", *EXPECTED]) == 1
    diff = capsys.readouterr().out
    done = subprocess.run(["patch", "-p0", "--dry-run"], input=diff, text=True, check=False)
    assert done.returncode == 0


def test_diff_shows_each_reason_above_its_line() -> None:
    text = "".join(f"{number}\n" for number in range(1, 8))
    edits = [Edit(3, ("three",), "three"), Edit(4, (), "four"), Edit(7, ("6b",), "new", True)]
    assert unified_diff("job.sh", text, edits) == (
        "--- job.sh\n+++ job.sh\n"
        "@@ -1,3 +1,3 @@ three\n 1\n 2\n-3\n+three\n"
        "@@ -4,3 +4,2 @@ four\n-4\n 5\n 6\n"
        "@@ -7,1 +6,2 @@ new\n+6b\n 7\n"
    )


def test_lines_inserted_at_one_place_keep_their_order() -> None:
    edits = [Edit(1, ("a",), inserts=True), Edit(1, ("b", "c"), inserts=True), Edit(1, ("d",))]
    assert apply_edits("x\ny\n", edits) == "a\nb\nc\nd\ny\n"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_edits_keep_line_ends(end: str) -> None:
    text = end.join(["a", "b", "c"])
    edits = [Edit(2, ("B", "B2")), Edit(4, ("wait",), inserts=True)]
    assert apply_edits(text, edits) == end.join(["a", "B", "B2", "c", "wait", ""])


HOSTILE = [
    "$(" * 10**6,
    "'" * 10**6,
    "((" * 10**6,
    "{ " * 10**6,
    "<<a\n" * 10**6,
    "${" * 10**6,
    "#SBATCH --x=" * 10**5,
    "#SBATCH -c 1\n" * 10**5,
    "case x in\n" * 10**5,
    "#SBATCH -J a\n# SBATCH -c 16\n" * 5_000 + "srun " * 10**5,
    f"A='{'x ' * 900}'\n" + "srun $A\n" * 10**5,
    f"A=({'x ' * 900})\n" + 'torchrun "${A[@]}"\n' * 10**5,
    "".join(f"python a.py $SLURM_X{number}_ARRAY_ID\n" for number in range(5000)),
    "".join(random.Random(1).choices("$(){}'\"\\`<>&|;= \n#-ab", k=10**6)),
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_read_in_time(body: str) -> None:
    for _ in range(3):  # another test's garbage is collected in one of them
        began = time.thread_time()
        check_batch_script(f"#!/bin/bash\n#SBATCH -c 2\n{body}")
        if (took := time.thread_time() - began) < 2:
            break
    assert took < 2


HEAD = "#!/bin/bash\n#SBATCH --time=1:00:00 --mem=8G\n"


def program(text: str) -> Reader:
    facts = facts_of(text)
    return lambda name: facts if name == "train.py" else None


@pytest.mark.parametrize(
    ("found", "header", "command", "text"),
    [
        ("4:copies-by-srun", "-n 4", "srun python train.py", "import torch\n"),
        ("", "-n 4", "srun python train.py", "import lightning\n"),
        ("4:tasks-for-threads", "-n 4", "python train.py", "import torch\n"),
        ("4:ranks-without-launcher", "-n 4", "python train.py", "dist.init_process_group()\n"),
        ("4:no-rendezvous", "-n 4", "srun python train.py", "dist.init_process_group('gloo')\n"),
        (
            "",
            "-n 4",
            "srun python train.py",
            "os.environ['MASTER_ADDR'] = head\ndist.init_process_group('gloo')\n",
        ),
        ("4:gpu-unused", "--gres=gpu:1", "python train.py", "model.to(torch.device('cpu'))\n"),
        (
            "",
            "--gres=gpu:1",
            "python train.py",
            "device = 'cpu'\nif torch.cuda.is_available():\n    device = 'cuda'\n",
        ),
        ("4:threads-of-node", "-c 4", "python train.py", "n = os.cpu_count()\n"),
        ("", "-c 4 --exclusive", "python train.py", "n = os.cpu_count()\n"),
        ("", "-c 4", "python train.py", "len(os.sched_getaffinity(0)) or os.cpu_count()\n"),
        ("4:too-many-workers", "-c 4", "python train.py", "DataLoader(data, num_workers=8)\n"),
        (
            "4:too-many-workers",
            "-c 4",
            "python train.py",
            "parser.add_argument('--num-workers', type=int, default=16)\n",
        ),
        (
            "",
            "-c 4",
            "python train.py --num-workers 3",
            "parser.add_argument('--num-workers', type=int, default=16)\n",
        ),
        (
            "4:pool-too-large",
            "-c 4",
            "python train.py",
            "import multiprocessing\nPool(processes=8)",
        ),
        ("4:pool-too-large", "-c 4", "python train.py", "N = 8\nForest(n_jobs=N)\n"),
        ("", "-c 8", "python train.py", "N = 8\nForest(n_jobs=N)\n"),
        ("", "-c 4", "python train.py", "import keras\nlayer = Pool(8)\n"),
        ("", "-c 4", "python train.py", "Forest(n_jobs=-1)\n"),
        ("4:gpu-unused", "--gres=gpu:1", "python train.py", "import os\nimport sklearn\n"),
        ("", "--gres=gpu:1", "python train.py", "import sklearn\nimport helpers\n"),
        (
            "",
            "--gres=gpu:1",
            "python train.py",
            "import numpy\nimport subprocess\nsubprocess.run()",
        ),
        (
            "4:lightning-tasks",
            "-N 1 --ntasks-per-node=1",
            "srun python train.py",
            "import lightning as L\nL.Trainer(devices=[0, 1])\n",
        ),
        (
            "4:lightning-tasks",
            "-N 2 --ntasks-per-node=2",
            "srun python train.py",
            "import lightning as L\nL.Trainer(devices=2)\n",
        ),
        (
            "",
            "-N 2 --ntasks-per-node=2",
            "srun python train.py",
            "import lightning as L\nL.Trainer(devices=2, num_nodes=2)\n",
        ),
        (
            "",
            "-N 1 --ntasks-per-node=2",
            "srun python train.py",
            "import lightning as L\nL.Trainer(devices='auto')\n",
        ),
        (
            "4:idle-gpus",
            "--gres=gpu:2",
            "python train.py",
            "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nmodel.to('cuda')\n",
        ),
        (
            "4:rendezvous-localhost",
            "-N 2 --ntasks-per-node=1",
            "srun python train.py",
            "dist.init_process_group('gloo', init_method='tcp://127.0.0.1:2345')\n",
        ),
        (
            "",
            "-N 1 --ntasks-per-node=2",
            "srun python train.py",
            "os.environ['MASTER_ADDR'] = 'localhost'\ndist.init_process_group('gloo')\n",
        ),
        ("", "--array=0-3", "python train.py", "index = os.environ['SLURM_ARRAY_TASK_ID']\n"),
        (
            "3:array-index-unused",
            "--array=0-3",
            "python train.py",
            "# SLURM_ARRAY_TASK_ID\nimport torch\n",
        ),
    ],
)
def test_program_beside_the_script_counts(found: str, header: str, command: str, text: str) -> None:
    script = f"{HEAD}#SBATCH {header}\n{command}\n"
    got = [f"{each.line}:{each.rule}" for each in check_batch_script(script, program(text))]
    assert got == found.split()


def test_program_is_read_beside_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job").write_text(f"{HEAD}#SBATCH --ntasks=4\nsrun python sub/train.py\n")
    assert main(["lint", str(tmp_path / "job")]) == 0
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/train.py").write_text("import torch\n")
    assert main(["lint", str(tmp_path / "job")]) == 1
    assert ":4: copies-by-srun" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("job.py", "#!/bin/bash\n#SBATCH -c 4\necho\n", "batch"),
        ("train", "#!/bin/bash\necho\n", "shell"),
        ("train.txt", "#BSUB -n 4\n#BSUB -W 10\npython x.py\n", "batch"),
        ("x.lsf", "#!/usr/bin/env python3\n#SBATCH -c 4\nprint()\n", "python batch"),
        ("submit.py", "TEXT = '''\n#SBATCH -c 4\n'''\n", "python"),
        ("a.sh", "echo\n", "shell"),
        ("a", "print()\n", "python"),
    ],
)
def test_kind_of_file_is_what_it_contains(tmp_path: Path, name: str, text: str, kind: str) -> None:
    (tmp_path / name).write_text(text)
    assert _read(tmp_path / name).kind == kind


def test_script_that_writes_batch_scripts_is_none(tmp_path: Path) -> None:
    inner = "#!/bin/bash\n#SBATCH --cpu-per-task=4\npython train.py\n"
    (tmp_path / "submit.sh").write_text(f"#!/bin/bash\ncat > job <<END\n{inner}END\nsbatch job\n")
    assert main(["lint", str(tmp_path / "submit.sh")]) == 0


@pytest.mark.parametrize("folder", ["there", "there/absent", "elsewhere/absent"])
def test_only_a_folder_that_its_parent_lacks_is_missing(tmp_path: Path, folder: str) -> None:
    (tmp_path / "there").mkdir()
    script = f"{HEAD}cd {tmp_path}/{folder}\npython train.py\n"
    assert findings(script) == (["3:missing-folder"] if folder == "there/absent" else [])


def test_large_file_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH -c 2\n" + "$(" * 5_000_000)
    began = time.process_time()
    assert main(["lint", str(tmp_path / "job.sh")]) == 2
    assert time.process_time() - began < 2
    assert "more than 4 MB" in capsys.readouterr().err


LSF = "#!/bin/bash\n#BSUB -R span[hosts=1]\n#BSUB -M 8G\n"
PBS = "#!/bin/bash\n#PBS -l mem=8gb\ncd $PBS_O_WORKDIR\n"
SGE = "#!/bin/bash\n#$ -cwd\n#$ -l h_vmem=8G\n"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ("2:time-unit", "#!/bin/bash\n#SBATCH --time=8:00 --mem=8G # 8h\npython a.py\n"),
        ("", "#!/bin/bash\n#SBATCH --time=8:00 --mem=8G # 8 minutes\npython a.py\n"),
        ("", "#!/bin/bash\n#SBATCH --time=8:00 --mem=8G # hours:minutes\npython a.py\n"),
        ("", "#!/bin/bash\n#SBATCH --time=30 --mem=8G # at most 24 hours\npython a.py\n"),
        ("", "#!/bin/bash\n#SBATCH --time=1-0 --mem=8G # 24 hours\npython a.py\n"),
        ("4:time-unit", f"{LSF}#BSUB -W 24 # hours\npython a.py\n"),
        ("", f"{LSF}#BSUB -W 24:00 # 24 hours\npython a.py\n"),
        ("4:time-unit", f"{SGE}#$ -l h_rt=48\npython a.py\n"),
        ("", f"{SGE}#$ -l h_rt=86400\npython a.py\n"),
        ("2:memory-unit", "#!/bin/bash\n#PBS -l select=1:ncpus=2:mem=16\n#PBS -l walltime=9:0:0\n"),
        ("4:memory-unit", f"{SGE}#$ -l h_vmem=4,h_rt=9:0:0\npython a.py\n"),
        ("", f"{SGE}#$ -l h_vmem=4G,h_rt=9:0:0\npython a.py\n"),
        (
            "3:memory-unit",
            "#!/bin/bash\n#SBATCH -t 9\n#SBATCH --mem=128 --gres=gpu:1\npython a.py\n",
        ),
        ("2:memory-per-core", "#!/bin/bash\n#SBATCH -c 16 -t 9 --mem-per-cpu=64G\npython a.py\n"),
        ("", "#!/bin/bash\n#SBATCH -c 16 -t 9 --mem-per-cpu=16G\npython a.py\n"),
        ("4:array-syntax", f"{LSF}#BSUB -J a[0-3] -o a%I\npython a.py $LSB_JOBINDEX\n"),
        ("4:array-syntax", f"{SGE}#$ -t 0-3\npython a.py $SGE_TASK_ID\n"),
        ("", f"{SGE}#$ -t 10-30:10\npython a.py $SGE_TASK_ID\n"),
        ("4:foreign-variable", f"{SGE}export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\npython a.py\n"),
        ("", f"{SGE}N=${{SLURM_CPUS_PER_TASK:-$NSLOTS}}\npython a.py -j $N\n"),
        (
            "",
            f'{SGE}if [ -n "$SLURM_JOB_ID" ]; then\ncd $SLURM_SUBMIT_DIR\nfi\npython a.py\n',
        ),
        ("3:foreign-variable", f"{HEAD}cd $PBS_O_WORKDIR\npython a.py\n"),
        ("4:foreign-variable", f"{PBS}python a.py $((SLURM_NTASKS + 1))\n"),
        ("", f"{HEAD}PBS_O_WORKDIR=$PWD\ncd $PBS_O_WORKDIR\npython a.py\n"),
        ("4:variable-in-directive", f"{SGE}#$ -N $N\nN=a\npython a.py\n"),
        ("", f"{SGE}#$ -o $HOME/$JOB_NAME.log\npython a.py\n"),
        ("3:variable-in-directive", f"{HEAD}#SBATCH -o $1.log\npython a.py\n"),
        ("", f"{HEAD}#SBATCH --array=1-9%1\nexport MASTER_PORT=6000\n./a $SLURM_ARRAY_TASK_ID\n"),
        ("4:array-one-log", f"{SGE}#$ -t 1-3 -o a.log\npython a.py $SGE_TASK_ID\n"),
        ("", f"{SGE}#$ -t 1-3 -o logs\npython a.py $SGE_TASK_ID\n"),
        ("5:mpirun-slots", f"{SGE}#$ -pe mpi 8\nmpirun -np 16 python a.py\n"),
        ("", f"{SGE}#$ -pe mpi 8\nmpirun -np $NSLOTS python a.py\n"),
        ("5:one-task-for-nodes", f"{LSF}#BSUB -n 8 -R span[ptile=4]\ntorchrun --nnodes=2 a.py\n"),
        ("4:hidden-gpus", f"{HEAD}#SBATCH --gres=gpu:2\nCUDA_VISIBLE_DEVICES=2,3 python a.py\n"),
        ("", f"{HEAD}#SBATCH --gres=gpu:2\nCUDA_VISIBLE_DEVICES=0,1 python a.py\n"),
        ("", f"{LSF}#BSUB -J a[1-64] -o a%I\npython a.py $LSB_JOBINDEX --njobs 64\n"),
        ("4:idle-gpus", f"{HEAD}#SBATCH --gres=gpu:2\nCUDA_VISIBLE_DEVICES=1 python a.py\n"),
        ("3:exclusive-options", f"{HEAD}#SBATCH --gpus=1 --cpus-per-gpu=2 -c 2\npython a.py\n"),
        ("4:foreign-variable", f"{HEAD}#SBATCH --array=0-3\npython a.py $SLURM_TASK_ARRAY_ID\n"),
        ("", f"{HEAD}#SBATCH --array=0-3\npython a.py $SLURM_ARRAY_TASK_MAX\n"),
        ("", f"{HEAD}export SLURM_TASK_ID=3\npython a.py $SLURM_TASK_ID\n"),
        ("", f"{HEAD}#SBATCH --export=none\nsrun ./model\n"),
        ("4:export-none", f"{HEAD}#SBATCH --export=none\nsrun python a.py\n"),
        ("", f"{HEAD}#SBATCH --gpus=1\nexport OMP_NUM_THREADS=8\nsrun -n 1 -c 8 ./model\n"),
        (
            "",
            f"{HEAD}#SBATCH -N 4 --ntasks-per-node=8\nsrun -N 1 -n 8 ./a &\nwait\n",
        ),
        ("", f"{HEAD}...\n#SBATCH -n 1\npython a.py\n"),
    ],
)
def test_amounts_and_variables_of_each_scheduler(found: str, text: str) -> None:
    assert findings(text) == found.split()


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ("3:commented-directive", f"{HEAD}# SBATCH -c 16\npython a.py --n-jobs 16\n"),
        ("3:commented-directive", f"{HEAD}##SBATCH -n 4\nmpirun -np 4 ./a\n"),
        ("", f"{HEAD}# SBATCH -c 16\npython a.py --epochs 16\n"),
        ("", f"{HEAD}#SBATCH -c 8\n# SBATCH -c 16\npython a.py --n-jobs 8\n"),
        ("", f"{HEAD}# SBATCH --time=9 --mail-user=me\npython a.py\n"),
        ("4:commented-directive", f"{LSF}# BSUB -n 8\npython a.py --workers 8\n"),
        (
            "3:commented-directive",
            "#!/bin/bash\n#PBS -l mem=8gb\n# PBS -l nodes=1:ppn=8\nOMP_NUM_THREADS=8 ./a\n",
        ),
        ("4:directive-spelling", f"{SGE}#S -pe smp 8\nexport OMP_NUM_THREADS=8\n./a\n"),
        ("4:commented-directive", f"{SGE}# $ -pe smp 8\nexport OMP_NUM_THREADS=8\n./a\n"),
        ("", f"{SGE}# $ -m be\n./a\n"),
        ("", f"{HEAD}#S -pe smp 8\npython a.py\n"),
        ("3:directive-spelling", f"{HEAD}#SBTACH -c 4\npython a.py --threads 4\n"),
        ("4:directive-spelling", f"{LSF}#BUSB -n 4\npython a.py --threads 4\n"),
        ("", f"{HEAD}#BATCHES -c 4\n#NOTE -c is for cores\npython a.py\n"),
        ("5:threads-of-node", f"{HEAD}#SBATCH -c 4\nN=$(nproc --all)\npython a.py --nproc $N\n"),
        (
            "6:threads-of-node",
            f"{HEAD}#SBATCH -c 4\nN=$(nproc --all)\nM=$((N - 1))\npython a.py --jobs $M\n",
        ),
        (
            "5:threads-of-node",
            f"{HEAD}#SBATCH -c 4\nN=`python -c 'import os; print(os.cpu_count())'`\n"
            "export OMP_NUM_THREADS=$N\npython a.py\n",
        ),
        ("", f"{HEAD}#SBATCH -c 4\nN=$(nproc)\npython a.py --nproc $N\n"),
        ("", f"{HEAD}#SBATCH -c 4\nN=$(nproc --all)\nN=4\npython a.py --nproc $N\n"),
        (
            "",
            f"{HEAD}#SBATCH -c 4\nN=$(python -c 'import joblib; print(joblib.cpu_count())')\n"
            "python a.py --nproc $N\n",
        ),
        (
            "6:processes-times-threads",
            f"{HEAD}#SBATCH -c 8\nexport OMP_NUM_THREADS=8\nexport MKL_NUM_THREADS=8\n"
            "python a.py --n-jobs 8\n",
        ),
        (
            "5:processes-times-threads",
            f"{HEAD}#SBATCH -c 8\nexport OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n"
            "python a.py --num_processes=4\n",
        ),
        ("", f"{HEAD}#SBATCH -c 8\nexport OMP_NUM_THREADS=2\npython a.py --n-jobs 4\n"),
        ("", f"{HEAD}#SBATCH -c 8\nexport OMP_NUM_THREADS=1\npython a.py --n-jobs 8\n"),
        (
            "2:too-many-threads",
            "#!/bin/bash\n#PBS -l select=1:ncpus=4:mem=8gb:ompthreads=8\n#PBS -l walltime=9:0:0\n"
            "cd $PBS_O_WORKDIR\npython a.py\n",
        ),
        (
            "",
            "#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=2:ompthreads=4:mem=8gb\n"
            "cd $PBS_O_WORKDIR\nmpirun python a.py\n",
        ),
    ],
)
def test_slips_and_numbers_by_way_of_variables(found: str, text: str) -> None:
    assert findings(text) == found.split()
    edits = [edit for each in check_batch_script(text) for edit in each.edits]
    assert not edits or findings(apply_edits(text, edits)) == []


@pytest.mark.parametrize(
    ("option", "gpus", "levels"),
    [("workers", 0, ["note"]), ("workers", 1, []), ("num-workers", 0, [])],
)
def test_workers_times_threads_are_a_note_unless_a_loader_starts_them(
    option: str, gpus: int, levels: list[str]
) -> None:
    head = f"{HEAD}#SBATCH -c 8 --gpus={gpus}\n"
    script = f"{head}export OMP_NUM_THREADS=8\npython a.py --{option} 7\n"
    found = [each for each in check_batch_script(script) if each.line == 5]
    assert [each.level for each in found] == levels


GPUS = f"{HEAD}#SBATCH --gres=gpu:4 -c 4\n"
ARRAY = f"{HEAD}#SBATCH --array=1-9\n"
TORQUE = "#!/bin/bash\n#PBS -l nodes=2:ppn=16,mem=8gb\ncd $PBS_O_WORKDIR\n"


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ("4:idle-gpus", f"{GPUS}python a.py --device cuda:0\n"),
        ("4:idle-gpus", f"{GPUS}srun python a.py --device=cuda:1\n"),
        ("4:idle-gpus", f"{GPUS}python a.py --devices 1\n"),
        ("4:idle-gpus", f"{GPUS}python a.py --gpus 1\n"),
        ("4:idle-gpus", f"{GPUS}python a.py --gpu 0\n"),
        ("4:idle-gpus", f"{GPUS}python a.py --gpu_ids 2\n"),
        ("", f"{GPUS}python a.py --gpu_ids 0 1 2 3\n"),
        ("", f"{GPUS}python a.py --gpu_ids 0,1,2,3\n"),
        ("", f"{GPUS}python a.py --device cuda\n"),
        ("", f"{GPUS}python a.py --device cuda:0 --teacher cuda:1\n"),
        ("", f"{GPUS}python a.py --device cuda:0 &\npython a.py --device cuda:1 &\nwait\n"),
        ("", f"{GPUS}python a.py --device cuda:0\ntorchrun --nproc_per_node=4 b.py\n"),
        ("", f"{HEAD}#SBATCH --gres=gpu:1\npython a.py --device cuda:0\n"),
        ("3:array-index-unused", f"{ARRAY}echo task $SLURM_ARRAY_TASK_ID\npython a.py\n"),
        ("", f"{ARRAY}echo $SLURM_ARRAY_TASK_ID > task.txt\npython a.py task.txt\n"),
        ("", f"{ARRAY}echo $SLURM_ARRAY_TASK_ID | python a.py\n"),
        ("4:mpirun-slots", f"{TORQUE}mpirun -np 64 ./a\n"),
        ("4:mpirun-slots", f"{TORQUE}mpirun -np 64 -machinefile $PBS_NODEFILE ./a\n"),
        ("", f"{TORQUE}mpirun -np 32 ./a\n"),
        ("", f"{TORQUE}mpirun -np 64 --oversubscribe ./a\n"),
        (
            "4:mpirun-slots",
            "#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=8:mem=8gb\ncd $PBS_O_WORKDIR\n"
            "mpiexec -n 32 ./a\n",
        ),
        (
            "",
            "#!/bin/bash\n#PBS -l select=1:ncpus=8:mem=8gb+3:ncpus=16:mem=8gb\n"
            "cd $PBS_O_WORKDIR\nmpiexec -n 56 ./a\n",
        ),
        ("3:setenv-in-bash", f"{HEAD}setenv OMP_NUM_THREADS 1\n./a\n"),
        ("4:setenv-in-bash", f"{SGE}setenv OMP_NUM_THREADS 1\n./a\n"),
        ("", f"{SGE}#$ -S /bin/csh\nsetenv OMP_NUM_THREADS 1\n./a\n"),
        ("", "#!/bin/tcsh\n#SBATCH -t 9 --mem=8G\nsetenv OMP_NUM_THREADS 1\n./a\n"),
        ("", f'{HEAD}setenv() {{ export "$1=$2"; }}\nsetenv OMP_NUM_THREADS 1\n./a\n'),
        ("5:module-in-sh", f"{SGE}#$ -S /bin/sh\nmodule load R\nRscript a.R\n"),
        ("", f"{SGE}#$ -S /bin/bash\nmodule load R\nRscript a.R\n"),
        ("", f"{SGE}#$ -S /bin/sh\n. /etc/profile.d/modules.sh\nmodule load R\nRscript a.R\n"),
        ("4:too-few-threads", f"{HEAD}#SBATCH -c 16\nexport OMP_NUM_THREADS=4\nsrun ./a\n"),
        ("", f"{HEAD}#SBATCH -c 16\nexport OMP_NUM_THREADS=16\nsrun ./a\n"),
        ("", f"{HEAD}#SBATCH -c 16\nexport OMP_NUM_THREADS=4\nsrun -n 4 -c 4 ./a\n"),
        ("", f"{HEAD}#SBATCH -n 4 -c 4\nexport OMP_NUM_THREADS=4\nsrun -c 4 ./a\n"),
        ("", f"{HEAD}#SBATCH -c 16\nexport OMP_NUM_THREADS=4\n./a.sh\n"),
        ("", f"{HEAD}#SBATCH -c 16\nexport OMP_NUM_THREADS=4\n./a &\n./b &\nwait\n"),
    ],
)
def test_idle_gpus_tasks_and_cores_and_wrong_shells(found: str, text: str) -> None:
    assert findings(text) == found.split()
    edits = [edit for each in check_batch_script(text) for edit in each.edits]
    assert not edits or findings(apply_edits(text, edits)) == []


@pytest.mark.parametrize(
    ("level", "text"),
    [
        ("warning", f"{SGE}#$ -S /bin/bash\nsetenv A 1\n./a\n"),
        ("note", f"{SGE}setenv A 1\n./a\n"),
        ("note", f"{SGE}#$ -S /bin/sh\nmodule load R\n./a\n"),
        ("note", f"{HEAD}#SBATCH -c 16\nexport OMP_NUM_THREADS=4\n./a\n"),
    ],
)
def test_what_depends_on_the_shell_or_the_program_is_a_note(level: str, text: str) -> None:
    assert [each.level for each in check_batch_script(text)] == [level]


def test_cores_that_lsf_leaves_to_a_job_are_no_pool_of_its_own() -> None:
    script = f"{LSF}#BSUB -n 4\npython train.py\n"
    (found,) = check_batch_script(script, program("import multiprocessing\nmultiprocessing.Pool()"))
    assert found.message.startswith("Pool() in train.py, line 2, counts all cores")
    assert 'int(os.environ["LSB_DJOB_NUMPROC"])' in found.message


def test_note_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"{HEAD}#SBATCH -n 4 -c 4\nsrun python train.py\n")
    assert main(["lint", str(path)]) == 0
    assert ":4: note: srun-without-cores: " in capsys.readouterr().out


def test_log_whose_folder_the_script_makes_is_not_moved_up() -> None:
    script = "#!/bin/bash\nmkdir -p logs\n#SBATCH -o logs/a.log\n#SBATCH -c 4\npython train.py\n"
    moved = [each for each in check_batch_script(script) if each.rule == "after-command"]
    assert [bool(each.edits) for each in moved] == [False, True]


@pytest.mark.parametrize(("mem", "kept"), [("64G", "mem-per-cpu=8G"), ("256G", "mem=256G")])
def test_larger_of_two_memories_is_kept(mem: str, kept: str) -> None:
    head = f"#!/bin/bash\n#SBATCH --time=9\n#SBATCH -n 1 -c 16\n#SBATCH --mem={mem}\n"
    script = f"{head}#SBATCH --mem-per-cpu=8G\npython train.py\n"
    edits = [edit for each in check_batch_script(script) for edit in each.edits]
    after = apply_edits(script, edits)
    assert f"#SBATCH --{kept}\n" in after
    assert after.count("--mem") == 1


@pytest.mark.parametrize(
    "text",
    [
        "A='--nnodes 2 --node_rank 0 --master_addr a'\nsrun torchrun $A a.py\n",
        'A="--nnodes 2 --node_rank 0"\nB="--master_addr $H $A"\nsrun torchrun $B a.py\n',
        'A=(\n--nnodes 2\n--node_rank 0\n--master_addr "$H"\n)\nsrun torchrun "${A[@]}" a.py\n',
        'L="torchrun --nnodes 2 --node_rank 0 --master_addr $H"\nS="srun -l"\n$S $L a.py\n',
    ],
)
def test_arguments_in_variables_are_read(text: str) -> None:
    found = check_batch_script(f"{HEAD}#SBATCH -N 2 --ntasks-per-node=1\n{text}")
    assert [each.rule for each in found] == ["node-rank-fixed"]


def test_unknown_arguments_of_torchrun_are_not_missed() -> None:
    assert findings(f"{HEAD}#SBATCH -N 2 --ntasks-per-node=1\nsrun torchrun $ARGS a.py\n") == []


@pytest.mark.parametrize(("devices", "level"), [("0,1", "note"), ("0", "warning")])
def test_all_devices_by_hand_are_a_note(devices: str, level: str) -> None:
    script = f"{HEAD}#SBATCH --gres=gpu:2\nexport CUDA_VISIBLE_DEVICES={devices}\npython a.py\n"
    assert [each.level for each in check_batch_script(script)] == [level]


def test_address_in_a_variable_gets_no_correction_elsewhere() -> None:
    body = "A='--nnodes 2 --rdzv_endpoint localhost:29500'\nsrun torchrun $A a.py\n"
    (found,) = check_batch_script(f"{HEAD}#SBATCH -N 2 --ntasks-per-node=1\n{body}")
    assert (found.rule, found.edits) == ("rendezvous-localhost", ())
