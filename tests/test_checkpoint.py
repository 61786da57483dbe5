"""A checkpoint is whole, of this run, and plain tensors, or it is not used."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from make_runs import planned, tiny

from hpcncf.ncf import checkpoint
from hpcncf.ncf.checkpoint import Unusable
from hpcncf.ncf.model import NeuMF
from hpcncf.plan import Run
from hpcncf.records import Epoch
from hpcncf.spec import Model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("data") / "tiny"
    tiny(folder)
    return planned(folder)


@pytest.fixture
def saved(run: Run, tmp_path: Path) -> Path:
    path = tmp_path / "run" / "checkpoint.pt"
    model = NeuMF(4, 5, 2, Model())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.tensor([1]), torch.tensor([2]), torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    checkpoint.save(path, run, 31, [EPOCH], model, optimizer)
    return path


EPOCH = Epoch(
    epoch=0,
    training_s=1.0,
    evaluation_s=0.5,
    checkpoint_s=0.0,
    first_batch_s=0.1,
    steps=31,
    instances=7505,
    loss=0.5,
)


def test_what_is_saved_is_loaded(run: Run, saved: Path) -> None:
    found = checkpoint.load(saved, run)
    assert (found.epoch, found.step, found.epochs) == (1, 31, [EPOCH])
    assert set(found.model) == set(NeuMF(4, 5, 2, Model()).state_dict())
    assert found.optimizer["state"][0]["step"] == 1


def test_nothing_but_the_checkpoint_is_left(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_torn_file_is_refused(run: Run, saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(Unusable):
        checkpoint.load(saved, run)


def test_the_checkpoint_of_another_run_is_refused(run: Run, saved: Path) -> None:
    with pytest.raises(Unusable, match=r"of run 0123456789ab .*, expected ffffffffffff"):
        checkpoint.load(saved, run.model_copy(update={"id": "ffffffffffff"}))


def test_the_checkpoint_of_other_data_is_refused(run: Run, saved: Path) -> None:
    with pytest.raises(Unusable, match="expected 0123456789ab, other"):
        checkpoint.load(saved, run.model_copy(update={"data_key": "other"}))


class Trap:
    """What unpickling would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this must not run",)


@pytest.mark.parametrize("content", [Trap(), {"format": 1}, [1, 2], {"format": 99}])
def test_what_is_no_checkpoint_is_refused_and_never_run(
    run: Run, tmp_path: Path, content: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save(content, path)
    with pytest.raises(Unusable):
        checkpoint.load(path, run)
    path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(Unusable):
        checkpoint.load(path, run)
    assert capsys.readouterr().out == ""
