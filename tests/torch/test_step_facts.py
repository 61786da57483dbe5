"""What the probe notes of a step as its backward pass begins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

INJECT = Path(__file__).parents[2] / "hpcncf/probe/inject"
NUMBER, NODES, IS_CUT, LEAVES, NUMBERS, UNOWNED, DOUBLES, IN_DOUBLE, HOOKS = range(9)


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(INJECT))
    from _hpcncf_probe import step_facts

    step_facts.clear()
    yield step_facts
    for name in [name for name in sys.modules if name.startswith("_hpcncf_probe")]:
        del sys.modules[name]


def test_a_graph_is_counted_with_its_parameters(facts: ModuleType) -> None:
    """Two layers and a sum: two addmm, relu and sum; a transpose and two leaves of each layer."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    head = torch.optim.SGD(model[2].parameters(), 0.1)
    facts.own(head)
    loss = model(torch.ones(3, 4)).sum()
    facts.look(torch, 2, (loss,))
    (seen,) = facts.LOOKS
    assert seen[NUMBER] == 2
    assert seen[NODES] == 10
    assert (seen[IS_CUT], seen[LEAVES], seen[NUMBERS]) == (False, 4, 40 + 18)
    assert seen[UNOWNED] == 40
    assert (seen[DOUBLES], seen[IN_DOUBLE]) == (0, False)
    assert facts.NEXT[0] == 4
    loss.backward()  # the graph is as it was


def test_doubles_and_hooks_are_noted(facts: ModuleType) -> None:
    layer = nn.Linear(4, 1).double()
    for number in (2, 4):
        layer.register_forward_hook(lambda *_: None)
        facts.look(torch, number, layer(torch.ones(2, 4, dtype=torch.float64)).sum())
    first, second = facts.LOOKS
    assert (first[DOUBLES], first[IN_DOUBLE]) == (5, True)
    assert second[HOOKS] - first[HOOKS] == 1


def test_a_graph_without_end_is_cut(facts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "MOST_NODES", 50)
    x = torch.ones(1, requires_grad=True)
    for _ in range(200):
        x = x + 1
    facts.look(torch, 2, x)
    assert facts.LOOKS[0][IS_CUT]
    assert 50 <= facts.LOOKS[0][NODES] < 200


def test_what_cannot_be_looked_at_costs_nothing(facts: ModuleType) -> None:
    facts.look(torch, 2, None)
    facts.look(torch, 4, object())
    assert [each[NODES] for each in facts.LOOKS] == [0, 0]


@pytest.mark.parametrize(
    ("dataset", "whole"),
    [
        (TensorDataset(torch.zeros(4)), True),
        (Subset(TensorDataset(torch.zeros(4)), [0, 1]), True),
        (Subset(Subset(TensorDataset(torch.zeros(4)), [0, 1]), [0]), False),
        (ConcatDataset([TensorDataset(torch.zeros(4))]), False),
    ],
)
def test_data_sets_that_give_whole_batches(facts: ModuleType, dataset: object, whole: bool) -> None:
    assert facts.makes_whole_batches(dataset) is whole


def test_threads_are_read_from_the_environment(
    facts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in facts.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "4,2")
    assert facts.thread_environment() == {"OMP_NUM_THREADS": 1}
