"""What `hpcncf lint` finds in Python and sbatch files, and what it leaves alone."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcncf.cli import main
from hpcncf.errors import HpcncfError
from hpcncf.lint.batch_script import check_batch_script, check_launchers
from hpcncf.lint.python_script import check_python
from hpcncf.lint.rules import RULES, ProgramContext

ROOT = Path(__file__).parents[2]
DATASET = """\
class Rows(Dataset):
    def __init__(self):
        self.table = frame.iloc[:10]
        self.kept = torch.tensor([1, 2])

    def __getitem__(self, index):
        {line}
"""
LOOP = """\
for batch in loader:
    loss = criterion(model(batch))
    loss.backward()
    {line}
"""


def rules(text: str, cores: int | None = None) -> list[tuple[int, str]]:
    return [(each.line, each.rule) for each in check_python(text, ProgramContext(cores))]


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("pandas-per-sample", "return self.frame.iloc[index]"),
        ("pandas-per-sample", "return self.frame.at[index, 'user']"),
        ("tensor-per-sample", "return torch.tensor(self.users[index])"),
        ("tensor-per-sample", "return LongTensor([self.users[index]])"),
        ("set-difference", "return choice(list(set(self.items) - set(self.seen)))"),
        ("set-difference", "return choice(tuple(self.items.difference(self.seen)))"),
        ("", "return self.users[index], self.items[index]"),
        ("", "return self.tensor(index)"),
        ("", "return self.loc(index)"),
        ("", "return list(self.seen[index])"),
        ("", "return self.users[index] - self.items[index]"),
    ],
)
def test_work_for_each_sample(rule: str, line: str) -> None:
    assert rules(DATASET.format(line=line)) == ([(7, rule)] if rule else [])


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("kept-graph", "total += loss"),
        ("kept-graph", "total += loss * len(batch)"),
        ("kept-graph", "total = total + loss"),
        ("kept-graph", "losses.append(loss)"),
        ("synchronised-step", "total += loss.item()"),
        ("set-difference", "others = random.sample(list(items - seen), 4)"),
        ("", "total += loss.detach()"),
        ("", "total += 1"),
        ("", "losses.append(batch)"),
        ("", "mean = loss / 2"),
        ("", "loss = loss + penalty"),
        ("", "loss += 0.1 * loss"),
        ("", "if step % 100 == 0: print(loss.item())"),
        ("", "left = sorted(items - seen)"),
        ("", "loss = loss.detach(); losses.append(loss)"),
    ],
)
def test_work_in_each_step(rule: str, line: str) -> None:
    assert rules(LOOP.format(line=line)) == ([(4, rule)] if rule else [])


@pytest.mark.parametrize(
    "backward",
    [
        "scaler.scale(loss).backward()",
        "(loss / 4).backward()",
        "accelerator.backward(loss)",
        "self.manual_backward(loss)",
        "loss.backward(torch.ones_like(loss))",
    ],
)
def test_a_loss_is_one_however_it_is_differentiated(backward: str) -> None:
    loop = LOOP.replace("loss.backward()", backward)
    assert rules(loop.format(line="losses.append(loss)")) == [(4, "kept-graph")]
    assert rules(loop.format(line="losses.append(loss.detach())")) == []
    assert rules(loop.format(line="outputs.append(scaler)")) == []


def test_work_once_in_an_epoch_is_not_work_in_each_step() -> None:
    inner = "".join(f"    {line}\n" for line in LOOP.format(line="pass").splitlines())
    epochs = f"for epoch in range(9):\n{inner}    print(loss.item())\n"
    assert rules(epochs) == []
    assert rules("for user in sorted(users - seen):\n    item = choice(items)\n") == []
    drawn = "for user in users:\n    for item in sample(list(items - seen[user]), 4):\n        ..."
    assert rules(drawn) == [(2, "set-difference")]
    assert rules("[choice(list(items - seen[user])) for user in users]") == [(1, "set-difference")]


TRAINS = LOOP.format(line="pass")
NUMBERED = TRAINS.replace("loader:", "enumerate(tqdm(loader)):")
METHOD = "def train_dataloader(self):\n    return DataLoader(MLDataset(), batch_size=8)\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("DataLoader(train_set, batch_size=8)", 1),
        ("DataLoader(dataset=data.train)", 1),
        ("DataLoader(train_set, 8, True)", 0),
        ("DataLoader(train_set, shuffle=True)", 0),
        ("DataLoader(train_set, sampler=sampler)", 0),
        ("DataLoader(train_set, **options)", 0),
        ("DataLoader(test_set)", 0),
        # A loader trains whatever its data is called.
        (f"loader = DataLoader(dataset, batch_size=8)\n{TRAINS}", 1),
        (f"loader = DataLoader(dataset, batch_size=8)\n{NUMBERED}", 1),
        (f"loader = DataLoader(val_set, batch_size=8)\n{TRAINS}", 0),
        ("loader = DataLoader(dataset)\nfor batch in loader:\n    score(batch)\n", 0),
        (METHOD, 2),
        (METHOD.replace("train_", "test_"), 0),
    ],
)
def test_loaders_that_do_not_shuffle(text: str, line: int) -> None:
    assert rules(text) == ([(line, "no-shuffle")] if line else [])


def test_workers_have_a_core_each() -> None:
    workers = "DataLoader(test_set, num_workers=4)"
    assert rules(workers) == rules(workers, cores=4) == []
    assert rules(workers, cores=3) == [(1, "too-many-workers")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("os.environ['MASTER_PORT'] = '29500'", True),
        ("os.environ.setdefault('MASTER_PORT', '29500')", True),
        ("init(init_method='tcp://127.0.0.1:29500', rank=0)", True),
        ("os.environ['MASTER_PORT'] = str(12000 + job)", False),
    ],
)
def test_a_port_in_python_that_an_array_starts(text: str, found: bool) -> None:
    assert [each.rule for each in check_python(text, ProgramContext(in_array=True))] == (
        ["fixed-port"] if found else []
    )
    assert check_python(text) == []


@pytest.mark.parametrize(
    ("data", "found"), [("data", True), ("val_data", False), ("data, shuffle=False", False)]
)
def test_a_distributed_sampler_needs_the_epoch(data: str, found: bool) -> None:
    text = f"sampler = DistributedSampler({data})"
    assert rules(text) == ([(1, "no-set-epoch")] if found else [])
    assert check_python(text, ProgramContext(sets_epoch=True)) == []


def test_a_syntax_error_is_reported_with_its_line() -> None:
    with pytest.raises(HpcncfError, match="line 2: not Python") as refused:
        check_python("a = 1\nprint 'a'\n")
    assert str(refused.value).count("line 2") == 1


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    assert all(each.rule in RULES for each in check_batch_script(text))
    with contextlib.suppress(HpcncfError):
        assert all(each.rule in RULES for each in check_python(text))


FOUR = "#SBATCH --cpus-per-task=4"
START = "python -m torch.distributed.launch --nproc_per_node=2 train.py"


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        ("3 fixed-port", ["#SBATCH --array=0-9", "export MASTER_PORT=29500"]),
        (
            "3 fixed-port",
            ["#SBATCH -a 0-9", "torchrun --master_port 29500 train.py $SLURM_ARRAY_TASK_ID"],
        ),
        ("", ["export MASTER_PORT=29500"]),
        ("", ["#SBATCH --array=0-9", "export MASTER_PORT=$((12000 + SLURM_JOB_ID))"]),
        ("4 srun-without-cores", [FOUR, "#SBATCH -n 2 -N 1", "srun python train.py"]),
        ("3 srun-without-cores", [FOUR, "srun --exact python train.py"]),
        ("", [FOUR, "srun python train.py"]),  # the only task of a node has all its cores
        ("", [FOUR, "srun -c 4 python train.py"]),
        ("", [FOUR, "srun \\", "  --cpus-per-task=$SLURM_CPUS_PER_TASK python train.py"]),
        ("", [FOUR, "export SRUN_CPUS_PER_TASK=4", "srun python train.py"]),
        ("", ["srun python train.py"]),
        ("3 too-many-threads", ["#SBATCH -c 4", "export OMP_NUM_THREADS=8"]),
        ("", ["#SBATCH -c 4", "export OMP_NUM_THREADS=4"]),
        ("3 too-many-workers", ["#SBATCH -c4", "python train.py --num-workers 5"]),
        ("", ["#SBATCH -c 4", "python train.py --num_workers=4"]),
        # Cores that the script does not request are one, unless they are a node's or a GPU's.
        ("2 too-many-threads", ["export OMP_NUM_THREADS=8"]),
        ("2 too-many-workers", ["python train.py --num-workers 4"]),
        ("", ["#SBATCH --exclusive", "export OMP_NUM_THREADS=8"]),
        ("", ["#SBATCH --cpus-per-gpu=8", "python train.py --num-workers 4"]),
        ("3 tasks-for-threads", ["#SBATCH --ntasks=4", "python train.py"]),
        ("3 ranks-without-launcher", ["#SBATCH --ntasks=4", "python train_ddp.py"]),
        ("3 one-task-for-nodes", ["#SBATCH -N 2", "python train.py"]),
        ("", ["#SBATCH -N 2", "#SBATCH --ntasks-per-node=2", "srun python train.py"]),
        ("", ["#SBATCH --ntasks=4", "# python train.py", "torchrun train.py"]),
        ("", ["#SBATCH -n 4", "python prepare.py", "accelerate launch train.py"]),
        ("4 old-launcher", ["#SBATCH -c 2", "#SBATCH --ntasks=2", START]),
        ("", ["#SBATCH -c 2", START.replace("launch", "run")]),
    ],
)
def test_lines_of_a_batch_script(found: str, lines: list[str]) -> None:
    text = "\n".join(["#!/bin/bash", *lines, "#SBATCH --time=1:00:00"]) + "\n"
    complaints = [each for each in check_batch_script(text) if each.line < len(lines) + 2]
    assert [
        f"{each.line} {each.rule}" for each in complaints if each.rule != "no-limits"
    ] == found.splitlines()


def test_the_verb_names_files_and_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("DataLoader(train_set, shuffle=True, num_workers=4)\n")
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH -c 2 -t 9\nsrun -c 2 python train.py\n"
    )
    assert main(["lint", str(tmp_path)]) == 1
    reported = capsys.readouterr().out
    assert f"{tmp_path}/train.py:1: too-many-workers: " in reported  # by the script's cores
    assert reported.endswith("2 files read: 1 found\n")
    assert main(["lint", str(tmp_path), "--cores", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize(
    ("text", "other", "mends"),
    [
        ("sampler = DistributedSampler(data)\n", "train.py", "sampler.set_epoch(epoch)\n"),
        (
            "import os\nos.environ['MASTER_PORT'] = '29500'\n",
            "job.sbatch",
            "#!/bin/sh\n#SBATCH -c 1\n",
        ),
        ("torch.set_num_threads(64)\n", "job.sbatch", "#!/bin/sh\n#SBATCH -c 64\n"),
    ],
)
def test_files_are_read_together(text: str, other: str, mends: str, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(text)
    (tmp_path / other).write_text("#!/bin/sh\n#SBATCH --array=0-3\n" if "sbatch" in other else "")
    assert main(["lint", str(tmp_path)]) == 1
    (tmp_path / other).write_text(mends)
    assert main(["lint", str(tmp_path)]) == 0


@pytest.mark.parametrize("name", ["absent.py", "latin.py", "folder", "broken.py"])
def test_unreadable_files_are_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.py").write_bytes(b"name = '\xe9'\n")
    (tmp_path / "broken.py").write_text("def\n")
    (tmp_path / "folder").mkdir()
    assert main(["lint", str(tmp_path / name)]) == 2
    assert f"hpcncf: {tmp_path / name}: " in capsys.readouterr().err


def test_a_file_that_cannot_be_read_hides_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_text("def\n")
    (tmp_path / "train.py").write_text("DataLoader(train_set)\n")
    assert main(["lint", str(tmp_path)]) == 2
    reported = capsys.readouterr()
    assert "train.py:1: no-shuffle" in reported.out
    assert reported.out.endswith("2 files read: 1 found\n")
    assert "broken.py: line 1: not Python" in reported.err


def test_every_rule_is_documented_and_no_other() -> None:
    page = (ROOT / "docs/lint.md").read_text()
    documented = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert documented == list(RULES)


FORUM = """\
import argparse, os
os.environ["MKL_NUM_THREADS"] = "8"
os.environ.setdefault("OMP_NUM_THREADS", "2")
import torch
from torch import nn

torch.set_num_threads(64)
N_USERS, N_ITEMS, DIM = 215_366, 17_770, 300
parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=300)
args = parser.parse_args()


class NCF(nn.Module):
    def __init__(self, contexts=40_000):
        super().__init__()
        self.users = nn.Embedding(N_USERS, DIM)
        self.items = nn.Embedding(N_ITEMS, DIM)
        self.contexts = nn.Embedding(contexts, DIM, sparse=False)
        self.rows = nn.Embedding(N_USERS, DIM, sparse=True)
        self.head = nn.Sequential(nn.Linear(2 * DIM, args.hidden), nn.Linear(args.hidden, 1))


model = nn.DataParallel(NCF()).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.cuda.amp.GradScaler()
for epoch in range(20):
    for step, (rows, labels) in enumerate(loader):
        loss = criterion(model(rows), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        torch.save(model.state_dict(), f"checkpoints/{step}.pt")
        if step % 1000 == 0:
            torch.save(model.state_dict(), "last.pt")
        if rank == 0:
            torch.save(model.state_dict(), "newest.pt")
    torch.save(model.state_dict(), f"epoch-{epoch}.pt")
"""


def test_the_lines_of_a_forums_program_are_found() -> None:
    assert rules(FORUM, cores=2) == [
        (2, "too-many-threads"),
        (7, "too-many-threads"),
        (17, "dense-embedding"),
        (19, "dense-embedding"),
        (21, "layer-size"),
        (24, "data-parallel"),
        (32, "checkpoint-each-step"),
        (36, "checkpoint-each-step"),
    ]
    assert [rule for _, rule in rules(FORUM, cores=64)] == [
        rule for _, rule in rules(FORUM) if rule != "too-many-threads"
    ]
    amp = FORUM.replace('.to("cuda")', "").replace("torch.cuda.amp.", "")
    assert rules("from torch.cuda.amp import GradScaler; " + amp.lstrip())[-4:-2] == [
        (21, "layer-size"),
        (24, "data-parallel"),
    ]
    sgd = FORUM.replace("Adam", "SGD").replace("GradScaler", "GradKeeper")
    assert not {"dense-embedding", "layer-size"} & {rule for _, rule in rules(sgd)}


@pytest.mark.parametrize("call", ["rowwise(model, adam)", "hpcncf.remedies.rowwise(model, adam)"])
def test_rowwise_is_not_advised_to_a_file_that_calls_it(call: str) -> None:
    dense = "table = nn.Embedding(50_000, 8)\nadam = Adam(table.parameters())\n"
    assert rules(dense) == [(1, "dense-embedding")]
    assert rules(f"{dense}{call}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "nn.Embedding(n_users, 32)",
        "rows = 1\nrows += read()\nnn.Embedding(rows, 32)",
        "nn.Embedding(VOCAB, 32)\nVOCAB = 50_000",
        "nn.Embedding(5000, 32)",
        "nn.Linear(300, 10)",
        "torch.set_num_threads(int(os.environ['SLURM_CPUS_PER_TASK']))",
        "os.environ['OMP_NUM_THREADS'] = '2'",
        "DistributedDataParallel(model)",
        "torch.autograd.set_detect_anomaly(False)",
    ],
)
def test_sizes_and_threads_that_are_unknown_or_small_are_clean(line: str) -> None:
    assert rules(f"{line}\ntorch.optim.Adam(model.parameters())", cores=2) == []


@pytest.mark.parametrize("call", ["set_detect_anomaly(True)", "detect_anomaly()"])
def test_a_search_for_errors_that_was_left_on(call: str) -> None:
    assert rules(f"import torch\ntorch.autograd.{call}\n") == [(2, "anomaly-detection")]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks/corpus").glob("healthy_*.py")), ids=lambda path: path.stem
)
def test_healthy_programs_are_clean(path: Path) -> None:
    found = {rule for _, rule in rules(path.read_text(), cores=2)}
    assert found <= ({"no-shuffle"} if path.stem == "healthy_workers" else set())


def test_the_old_launcher_in_any_shell_script(tmp_path: Path) -> None:
    text = f"#!/bin/bash\nexport OMP_NUM_THREADS=64\n{START}\n"
    (tmp_path / "start.sh").write_text(text)
    assert main(["lint", str(tmp_path / "start.sh")]) == 1
    assert [each.line for each in check_launchers(text)] == [3]


def test_our_own_scripts_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(ROOT / "jobs/any_program.py"), str(ROOT / "slurm_templates")]) == 0, (
        capsys.readouterr().out
    )


def test_without_cores_it_says_that_threads_were_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "train.py"
    program.write_text("import torch\ntorch.set_num_threads(64)\n")
    for option, code in (((), 0), (("--cores", "64"), 0), (("--cores", "2"), 1)):
        assert main(["lint", str(program), *option]) == code
        assert ("--cores N" in capsys.readouterr().out) == (not option)
