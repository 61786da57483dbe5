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
from hpcncf.lint.python_script import Program, check_python
from hpcncf.lint.rules import RULES

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
    return [(each.line, each.rule) for each in check_python(text, Program(cores))]


def asked(*lines: str) -> list[tuple[int, str]]:
    text = "\n".join(["#!/bin/bash", *lines]) + "\n"
    return [(each.line, each.rule) for each in check_batch_script(text)]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("return self.frame.iloc[index]", "pandas-per-sample"),
        ("return self.frame.at[index, 'user']", "pandas-per-sample"),
        ("return torch.tensor(self.users[index])", "tensor-per-sample"),
        ("return LongTensor([self.users[index]])", "tensor-per-sample"),
        ("return choice(list(set(self.items) - set(self.seen)))", "set-difference"),
        ("return choice(tuple(self.items.difference(self.seen)))", "set-difference"),
    ],
)
def test_slow_work_for_each_sample_is_found(line: str, rule: str) -> None:
    assert rules(DATASET.format(line=line)) == [(7, rule)]


@pytest.mark.parametrize(
    "line",
    [
        "return self.users[index], self.items[index]",
        "return self.tensor(index)",
        "return self.loc(index)",
        "return list(self.seen[index])",
        "return self.users[index] - self.items[index]",
    ],
)
def test_fast_datasets_are_clean(line: str) -> None:
    assert rules(DATASET.format(line=line)) == []


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("total += loss", "kept-graph"),
        ("total += loss * len(batch)", "kept-graph"),
        ("total = total + loss", "kept-graph"),
        ("losses.append(loss)", "kept-graph"),
        ("total += loss.item()", "synchronised-step"),
        ("others = random.sample(list(items - seen), 4)", "set-difference"),
    ],
)
def test_costly_work_in_each_step_is_found(line: str, rule: str) -> None:
    assert rules(LOOP.format(line=line)) == [(4, rule)]


@pytest.mark.parametrize(
    "line",
    [
        "total += loss.detach()",
        "total += 1",
        "losses.append(batch)",
        "mean = loss / 2",
        "loss = loss + penalty",
        "loss += 0.1 * loss",
        "if step % 100 == 0: print(loss.item())",
        "left = sorted(items - seen)",
        "loss = loss.detach(); losses.append(loss)",
    ],
)
def test_good_loops_are_clean(line: str) -> None:
    assert rules(LOOP.format(line=line)) == []


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


def test_loaders() -> None:
    assert rules("DataLoader(train_set, 8, True)") == []
    assert rules("DataLoader(train_set, batch_size=8)") == [(1, "no-shuffle")]
    assert rules("DataLoader(dataset=data.train)") == [(1, "no-shuffle")]
    assert rules("DataLoader(train_set, shuffle=True)") == []
    assert rules("DataLoader(train_set, sampler=sampler)") == []
    assert rules("DataLoader(train_set, **options)") == []
    assert rules("DataLoader(test_set)") == []
    workers = "DataLoader(test_set, num_workers=4)"
    assert rules(workers) == rules(workers, cores=5) == []
    assert rules(workers, cores=4) == [(1, "too-many-workers")]


LOADER = "loader = DataLoader({data}, batch_size=8)\n"


def test_a_loader_trains_whatever_its_data_is_called() -> None:
    assert rules(LOADER.format(data="dataset") + LOOP.format(line="pass")) == [(1, "no-shuffle")]
    numbered = LOOP.format(line="pass").replace("loader:", "enumerate(tqdm(loader)):")
    assert rules(LOADER.format(data="dataset") + numbered) == [(1, "no-shuffle")]
    assert rules(LOADER.format(data="val_set") + LOOP.format(line="pass")) == []
    assert rules(LOADER.format(data="dataset") + "for batch in loader:\n    score(batch)\n") == []
    method = "def train_dataloader(self):\n    return DataLoader(MLDataset(), batch_size=8)\n"
    assert rules(method) == [(2, "no-shuffle")]
    assert rules(method.replace("train_", "test_")) == []


@pytest.mark.parametrize(
    "line",
    ["os.environ['MASTER_PORT'] = '29500'", "init(init_method='tcp://127.0.0.1:29500', rank=0)"],
)
def test_a_port_in_python_that_an_array_starts(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(f"import os\n{line}\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -c 1\npython train.py\n")
    assert main(["lint", str(tmp_path)]) == 0
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --array=0-3\npython train.py\n")
    assert main(["lint", str(tmp_path)]) == 1
    found = check_python(f"import os\n{line}\n", Program(in_array=True))
    assert [(each.line, each.rule) for each in found] == [(2, "fixed-port")]
    derived = "os.environ['MASTER_PORT'] = str(12000 + job)"
    assert check_python(derived, Program(in_array=True)) == []


def test_a_distributed_sampler_is_reported_the_epoch() -> None:
    assert rules("sampler = DistributedSampler(data)") == [(1, "no-set-epoch")]
    assert check_python("sampler = DistributedSampler(data)", Program(sets_epoch=True)) == []
    assert rules("sampler = DistributedSampler(val_data)") == []
    assert rules("sampler = DistributedSampler(data, shuffle=False)") == []


def test_a_syntax_error_is_reported_with_its_line() -> None:
    with pytest.raises(HpcncfError, match="line 2: not Python") as refused:
        check_python("a = 1\nprint 'a'\n")
    assert str(refused.value).count("line 2") == 1


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    assert all(each.rule in RULES for each in check_batch_script(text))
    with contextlib.suppress(HpcncfError):
        assert all(each.rule in RULES for each in check_python(text))


def test_a_port_that_all_tasks_of_an_array_share() -> None:
    fixed = "export MASTER_PORT=29500"
    assert asked("#SBATCH --array=0-9", fixed) == [(3, "fixed-port")]
    assert asked(fixed) == []
    assert asked("#SBATCH -a 0-9", "torchrun --master_port 29500 train.py") == [(3, "fixed-port")]
    assert asked("#SBATCH --array=0-9", "export MASTER_PORT=$((12000 + SLURM_JOB_ID))") == []


def test_srun_is_reported_the_cores() -> None:
    four = "#SBATCH --cpus-per-task=4"
    assert asked(four, "srun python train.py") == [(3, "srun-without-cores")]
    assert asked(four, "srun -c 4 python train.py") == []
    assert asked(four, "srun \\", "  --cpus-per-task=$SLURM_CPUS_PER_TASK python train.py") == []
    assert asked(four, "export SRUN_CPUS_PER_TASK=4", "srun python train.py") == []
    assert asked("srun python train.py") == []


def test_more_threads_or_workers_than_cores() -> None:
    assert asked("#SBATCH -c 4", "export OMP_NUM_THREADS=8") == [(3, "too-many-threads")]
    assert asked("#SBATCH -c 4", "export OMP_NUM_THREADS=4") == []
    assert asked("#SBATCH -c4", "python train.py --num-workers 4") == [(3, "too-many-workers")]
    assert asked("#SBATCH -c 4", "python train.py --num_workers=3") == []
    assert asked("export OMP_NUM_THREADS=8", "#SBATCH -c 8") == [(2, "too-many-threads")]


@pytest.mark.parametrize("option", ["--exclusive", "--cpus-per-gpu=8"])
def test_cores_that_the_script_does_not_say_are_not_assumed(option: str) -> None:
    lines = ["export OMP_NUM_THREADS=8", "python train.py --num-workers 4"]
    assert asked(f"#SBATCH {option}", *lines) == []
    assert [rule for _, rule in asked(*lines)] == ["too-many-threads", "too-many-workers"]


def test_tasks_that_nothing_starts() -> None:
    assert asked("#SBATCH --ntasks=4", "python train.py") == [(3, "ranks-without-launcher")]
    assert asked("#SBATCH -N 2", "python train.py") == [(3, "one-task-for-nodes")]
    assert asked("#SBATCH -N 2", "#SBATCH --ntasks-per-node=2", "srun python train.py") == []
    assert asked("#SBATCH --ntasks=4", "# python train.py", "torchrun train.py") == []
    assert asked("#SBATCH -n 4", "python prepare.py", "accelerate launch train.py") == []


def test_the_verb_names_files_and_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("DataLoader(train_set, shuffle=True, num_workers=4)\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -c 2\nsrun -c 2 python train.py\n")
    assert main(["lint", str(tmp_path)]) == 1
    reported = capsys.readouterr().out
    assert f"{tmp_path}/train.py:1: too-many-workers: " in reported  # by the script's cores
    assert reported.endswith("2 files read: 1 found\n")
    assert main(["lint", str(tmp_path), "--cores", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_another_file_may_set_the_epoch(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text("sampler = DistributedSampler(data)\n")
    assert main(["lint", str(tmp_path)]) == 1
    (tmp_path / "train.py").write_text("sampler.set_epoch(epoch)\n")
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
    "path", sorted((ROOT / "tests/programs").glob("healthy_*.py")), ids=lambda path: path.stem
)
def test_healthy_programs_are_clean(path: Path) -> None:
    found = {rule for _, rule in rules(path.read_text(), cores=2)}
    assert found <= ({"no-shuffle"} if path.stem == "healthy_workers" else set())


def test_torchs_old_launcher(tmp_path: Path) -> None:
    start = "python -m torch.distributed.launch --nproc_per_node=2 train.py"
    assert asked("#SBATCH -c 2", "#SBATCH --ntasks=2", start) == [(4, "old-launcher")]
    assert asked("#SBATCH -c 2", start.replace("launch", "run")) == []
    (tmp_path / "start.sh").write_text(f"#!/bin/bash\nexport OMP_NUM_THREADS=64\n{start}\n")
    assert main(["lint", str(tmp_path / "start.sh")]) == 1
    assert check_launchers((tmp_path / "start.sh").read_text())[0].line == 3


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
