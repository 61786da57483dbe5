"""With `rowwise` a program has the results that it had without."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from hpcncf.remedies import rowwise

ROWS, WIDTH = 17, 3

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam, other betas": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9), eps=1e-3),
    "adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adam, maximize": lambda p: torch.optim.Adam(p, lr=0.01, maximize=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.03),
    "sgd, decay": lambda p: torch.optim.SGD(p, lr=0.03, weight_decay=0.2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8, dampening=0.3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.03, lr_decay=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop, all": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.7, centered=True),
}


class Recommender(nn.Module):
    """Two tables, one read twice, a bag of a third, and a layer that torch's optimizer updates."""

    def __init__(self, padding_idx: int | None = None) -> None:
        super().__init__()
        self.users = nn.Embedding(ROWS, WIDTH)
        self.items = nn.Embedding(ROWS, WIDTH, padding_idx=padding_idx)
        self.tags = nn.EmbeddingBag(ROWS, WIDTH, mode="sum")
        self.layer = nn.Linear(WIDTH, 1)

    def forward(self, ids: Tensor) -> Tensor:
        user, item, other = self.users(ids), self.items(ids.flip(0)), self.items(ids)
        found: Tensor = self.layer(user * item + other * self.tags(ids[:, None]))
        return found.sigmoid()


class Twins:
    """A model and its copy with `rowwise`, trained alike."""

    def __init__(
        self, make: Callable[[Any], torch.optim.Optimizer], model: nn.Module | None = None
    ) -> None:
        torch.manual_seed(0)
        model = (model or Recommender()).double()
        self.models = [model, copy.deepcopy(model)]
        self.optimizers = [make(each.parameters()) for each in self.models]
        self.rowwise = rowwise(self.models[1], self.optimizers[1], small=0)

    def step(
        self,
        batches: list[list[int]],
        scale: float = 1.0,
        between: Callable[[nn.Module, torch.optim.Optimizer], object] = lambda *_: None,
        set_to_none: bool = True,
    ) -> None:
        losses = []
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            optimizer.zero_grad(set_to_none=set_to_none)
            for batch in batches:
                loss = (model(torch.tensor(batch)) ** 2).mean() * scale
                loss.backward()
                losses.append(loss.item())
            between(model, optimizer)
            optimizer.step()
        half = len(losses) // 2
        assert losses[half:] == pytest.approx(losses[:half], rel=1e-9, abs=1e-12)

    def differences(self) -> dict[str, float]:
        stock, ours = (each.state_dict() for each in self.models)
        found = {name: float((stock[name] - ours[name]).abs().max()) for name in stock}
        stock, ours = (each.state_dict() for each in self.optimizers)
        for number, state in stock["state"].items():
            assert list(state) == list(ours["state"][number])
            for name, value in state.items():
                if value is not None:
                    other = torch.as_tensor(ours["state"][number][name])
                    found[f"{number} {name}"] = float((torch.as_tensor(value) - other).abs().max())
        return found

    def check(self, bound: float = 1e-12) -> None:
        assert {k: v for k, v in self.differences().items() if not v <= bound} == {}


BATCHES = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=4)
EVENTS = st.one_of(
    st.tuples(st.just("step"), BATCHES),
    st.tuples(st.just("idle"), st.sampled_from([1, 2, 5, 15])),
    st.tuples(
        st.sampled_from(
            [
                "accumulate",
                "evaluate",
                "read weight",
                "score all",
                "write weight",
                "copy",
                "resume",
                "resume stock",
                "norm",
                "value",
                "keep",
                "rate",
                "dense",
                "closure",
                "zero",
                "pickle",
                "alias",
                "no gradient",
                "scaler",
                "index",
                "reload",
            ]
        ),
        BATCHES,
    ),
)


def act(twins: Twins, make: Callable[[Any], torch.optim.Optimizer], event: str, value: Any) -> None:
    """One thing that a program may do between steps or in one."""
    match event:
        case "step" | "norm" | "value" | "keep" | "zero":
            between: dict[str, Callable[..., object]] = {
                "norm": lambda m, _: nn.utils.clip_grad_norm_(m.parameters(), 0.01),
                "value": lambda m, _: nn.utils.clip_grad_value_(m.parameters(), 0.001),
                "zero": lambda _, o: o.zero_grad(set_to_none=False),
            }
            nothing: Callable[..., object] = lambda *_: None  # noqa: E731
            twins.step([value], 1.0, between.get(event, nothing), set_to_none=event != "keep")
        case "idle":
            for _ in range(value):
                twins.step([[0, 0]])
        case "accumulate":
            twins.step([value, value[::-1], [3]])
        case "rate":
            for optimizer in twins.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5 + 0.2 * value[0] / ROWS
                    if "betas" in group:
                        group["betas"] = (0.8 + 0.01 * value[0] / ROWS, group["betas"][1])
        case "evaluate":
            with torch.no_grad():
                stock, ours = (model.eval()(torch.tensor(value)) for model in twins.models)
            assert torch.allclose(stock, ours, rtol=1e-9, atol=1e-12)
        case "read weight":
            first, second = (model.get_submodule("items").weight for model in twins.models)
            assert float((first - second).detach().abs().max()) <= 1e-12
        case "score all":
            user = torch.ones(2, WIDTH, dtype=torch.float64)
            for act in (lambda w: w @ user[0], lambda w: F.linear(user, w), lambda w: w.t().sum(0)):
                first, second = (act(model.get_submodule("items").weight) for model in twins.models)
                assert torch.allclose(first, second, rtol=1e-9, atol=1e-12)
        case "dense":  # a gradient of all rows beside that of some

            def regularize(model: nn.Module, _: torch.optim.Optimizer) -> None:
                sum((each**2).sum() for each in model.parameters()).mul(1e-3).backward()

            twins.step([value], 1.0, regularize)
        case "write weight":
            for model in twins.models:
                with torch.no_grad():
                    model.get_submodule("users").weight[value[0]] = 0.5
                    model.get_submodule("items").weight.data.mul_(0.9)
        case "alias":
            kept = [model.state_dict() for model in twins.models]
            twins.step([value])
            for name in kept[0]:
                assert torch.allclose(kept[0][name], kept[1][name], rtol=1e-9, atol=1e-12)
        case "copy":
            copied = [copy.deepcopy(model) for model in twins.models]
            first, second = (each(torch.tensor(value)) for each in copied)
            assert type(copied[1].get_parameter("users.weight")) is nn.Parameter
            assert torch.allclose(first, second, rtol=1e-9, atol=1e-12)
        case "pickle":
            for model in twins.models:
                file = io.BytesIO()
                torch.save([model.state_dict(), twins.optimizers[1].state_dict()], file)
                file.seek(0)
                values, _ = torch.load(file, weights_only=True)
                assert type(values["users.weight"]) is Tensor
        case "no gradient":  # a step that skips a table
            for model, optimizer in zip(twins.models, twins.optimizers, strict=True):
                optimizer.zero_grad()
                model.get_submodule("users")(torch.tensor(value)).sum().backward()
                optimizer.step()
        case "closure":
            for model, optimizer in zip(twins.models, twins.optimizers, strict=True):

                def closure(
                    model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer
                ) -> Tensor:
                    optimizer.zero_grad()
                    loss: Tensor = (model(torch.tensor(value)) ** 2).sum()
                    loss.backward()
                    return loss

                assert optimizer.step(closure) is not None  # type: ignore[arg-type, func-returns-value]
        case "scaler":
            for model, optimizer in zip(twins.models, twins.optimizers, strict=True):
                scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
                optimizer.zero_grad()
                scaler.scale((model(torch.tensor(value)) ** 2).sum()).backward()
                if value[0] % 3 == 0:
                    next(iter(model.parameters())).grad.mul_(math.inf)  # type: ignore[union-attr]
                if value[0] % 2:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
        case "index":
            for model, optimizer in zip(twins.models, twins.optimizers, strict=True):
                optimizer.zero_grad()
                weight = model.get_submodule("items").weight
                (weight[torch.tensor(value) - ROWS] ** 2).sum().backward()
                (weight.index_select(0, torch.tensor(value)) ** 3).sum().backward()
                weight[2:4].sum().backward()
                optimizer.step()
        case "reload":
            state = copy.deepcopy(twins.models[0].state_dict())
            twins.models[1].load_state_dict(state)
        case "resume" | "resume stock":
            source = 1 if event == "resume" else 0
            saved = [each[source].state_dict() for each in (twins.models, twins.optimizers)]
            saved = copy.deepcopy(saved)
            model = type(twins.models[0])().double()
            optimizer = make(model.parameters())
            if value[0] % 2:  # before or after
                twins.rowwise = rowwise(model, optimizer, small=0)
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            if not value[0] % 2:
                twins.rowwise = rowwise(model, optimizer, small=0)
            twins.models[1], twins.optimizers[1] = model, optimizer


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(sorted(OPTIMIZERS)), events=st.lists(EVENTS, min_size=1, max_size=12))
def test_any_program_has_the_results_that_it_had(name: str, events: list[Any]) -> None:
    twins = Twins(OPTIMIZERS[name])
    for event, value in events:
        act(twins, OPTIMIZERS[name], event, value)
    assert twins.rowwise.tables == ["users.weight", "items.weight", "tags.weight"]
    twins.check(1e-10)
