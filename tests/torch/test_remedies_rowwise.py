"""With `rowwise` a program has the results that it had without."""

from __future__ import annotations

import collections
import copy
import io
import math
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from hpcncf.errors import UsageError
from hpcncf.remedies import RowwiseAdam, row_kernels, row_rules, rowwise
from hpcncf.remedies.row_rules import AdamWRule
from hpcncf.remedies.rowwise_optimizer import SMALL, Rowwise
from hpcncf_analysis.diagnosis.rules_step import LEAST_BY_ROWS, LEAST_IF_FUSED

ROWS = 17


@pytest.fixture(params=["compiled", "torch"])
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Adam's rows by the compiled loops, and by torch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(row_kernels, "library", lambda: None)
        elif row_kernels.library() is None:
            pytest.skip("there was no compiler when hpcncf was installed")
        yield request.param


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam, other betas": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9), eps=1e-3),
    "adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adam, maximize": lambda p: torch.optim.Adam(p, lr=0.01, maximize=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.03),
    "sgd, decay": lambda p: torch.optim.SGD(p, lr=0.03, weight_decay=0.2),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8, dampening=0.3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.03, lr_decay=0.01),
    "adagrad, fused": lambda p: torch.optim.Adagrad(p, lr=0.03, lr_decay=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop, all": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.7, centered=True),
}


@dataclass(frozen=True)
class Shape:
    """A model, and how its parameters are optimized."""

    width: int = 3
    padding_idx: int | None = None
    mode: str = "sum"
    shared: bool = False
    """Two modules have one table."""
    tied: bool = False
    """A layer reads all of a table, which is then torch's to update."""
    groups: str = "one"
    schedule: str = "none"
    ddp: bool = False


class Recommender(nn.Module):
    """Two tables, one read twice, a bag of a third, and a layer that torch's optimizer updates."""

    def __init__(self, shape: Shape = Shape()) -> None:
        super().__init__()
        width = shape.width
        self.users = nn.Embedding(ROWS, width)
        self.items = nn.Embedding(ROWS, width, padding_idx=shape.padding_idx)
        self.others = nn.Embedding(ROWS, width)
        if shape.shared:
            self.others.weight = self.users.weight
        self.tags = nn.EmbeddingBag(ROWS, width, mode=shape.mode)
        self.layer = nn.Linear(width, 1)
        self.scores = nn.Linear(width, ROWS, bias=False) if shape.tied else None
        if self.scores:
            self.scores.weight = self.others.weight

    def forward(self, ids: Tensor) -> Tensor:
        user, item, other = self.users(ids), self.items(ids.flip(0)), self.others(ids)
        tags = self.tags(torch.cat([ids, ids[:1]]), torch.arange(len(ids)))
        found: Tensor = self.layer(user * item + self.items(ids) * other * tags)
        if self.scores:
            found = found + self.scores(user).mean(dim=1, keepdim=True)
        return found.sigmoid()


Make = Callable[[Any], torch.optim.Optimizer]
SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.95),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=7),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(
        o, max_lr=0.05, total_steps=10_000, cycle_momentum="betas" in o.defaults
    ),
}


class Side:
    """One of two equal trainings."""

    def __init__(self, model: nn.Module, make: Make, shape: Shape, ours: bool) -> None:
        self.model = self.network = model
        tables = [model.get_parameter("users.weight"), model.get_parameter("items.weight")]
        rest = [each for each in model.parameters() if all(each is not one for one in tables)]
        groups: list[Any] = [[*tables, *rest]]
        if shape.groups == "rates":
            groups = [[{"params": tables, "lr": 0.02}, {"params": rest}]]
        elif shape.groups == "two optimizers":
            groups = [tables, rest]
        self.optimizers = [make(each) for each in groups]
        schedule = SCHEDULES.get(shape.schedule)
        self.schedules = [schedule(each) for each in self.optimizers] if schedule else []
        self.rowwise: list[Rowwise] = []
        if ours:
            if shape.ddp:
                self.network = DistributedDataParallel(model)
            self.take()

    def take(self) -> None:
        self.rowwise = [
            rowwise(self.network, each, small=0, strict=False) for each in self.optimizers
        ]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def take_step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
        for schedule in self.schedules:
            schedule.step()


class Twins:
    """A model and its copy with `rowwise`, trained alike."""

    def __init__(self, make: Make, shape: Shape = Shape()) -> None:
        torch.manual_seed(0)
        self.make, self.shape = make, shape
        model = Recommender(shape).double()
        other = copy.deepcopy(model)
        self.sides = [Side(model, make, shape, False), Side(other, make, shape, True)]

    @property
    def models(self) -> list[nn.Module]:
        return [side.model for side in self.sides]

    def resume(self, source: int, rows_first: bool) -> None:
        """Our side starts anew from what one of the two saves."""
        side = self.sides[source]
        keep = (side.model, *side.optimizers, *side.schedules)
        saved = copy.deepcopy([each.state_dict() for each in keep])
        new = Side(Recommender(self.shape).double(), self.make, self.shape, rows_first)
        for each, state in zip((new.model, *new.optimizers, *new.schedules), saved, strict=True):
            each.load_state_dict(state)
        if not rows_first:
            new.take()
        self.sides[1] = new

    def step(
        self,
        batches: list[list[int]],
        scale: float = 1.0,
        between: Callable[[Side], object] = lambda _: None,
        set_to_none: bool = True,
    ) -> None:
        losses = []
        for side in self.sides:
            side.zero_grad(set_to_none)
            for batch in batches:
                loss = (side.network(torch.tensor(batch)) ** 2).mean() * scale
                loss.backward()
                losses.append(loss.item())
            between(side)
            side.take_step()
        half = len(losses) // 2
        assert losses[half:] == pytest.approx(losses[:half], rel=1e-9, abs=1e-12)

    def differences(self) -> dict[str, float]:
        stock, ours = (each.state_dict() for each in self.models)
        found = {name: float((stock[name] - ours[name]).abs().max()) for name in stock}
        for one, other in zip(*(side.optimizers for side in self.sides), strict=True):
            stock, ours = one.state_dict(), other.state_dict()
            for number, state in stock["state"].items():
                assert list(state) == list(ours["state"][number])
                for name, value in state.items():
                    if value is not None:
                        mine = torch.as_tensor(ours["state"][number][name])
                        away = (torch.as_tensor(value) - mine).abs().max()
                        found[f"{number} {name}"] = float(away)
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


def act(twins: Twins, event: str, value: Any) -> None:
    """One thing that a program may do between steps or in one."""
    match event:
        case "step" | "norm" | "value" | "keep" | "zero":
            between: dict[str, Callable[..., object]] = {
                "norm": lambda s: nn.utils.clip_grad_norm_(s.model.parameters(), 0.01),
                "value": lambda s: nn.utils.clip_grad_value_(s.model.parameters(), 0.001),
                "zero": lambda s: s.zero_grad(set_to_none=False),
            }
            nothing: Callable[..., object] = lambda _: None  # noqa: E731
            twins.step([value], 1.0, between.get(event, nothing), set_to_none=event != "keep")
        case "idle":
            for _ in range(value):
                twins.step([[0, 0]])
        case "accumulate":
            twins.step([value, value[::-1], [3]])
        case "rate":
            for optimizer in (each for side in twins.sides for each in side.optimizers):
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
            user = torch.ones(2, twins.shape.width, dtype=torch.float64)
            for score in (
                lambda w: w @ user[0],
                lambda w: F.linear(user, w),
                lambda w: w.t().sum(0),
            ):
                first, second = (
                    score(model.get_submodule("items").weight) for model in twins.models
                )
                assert torch.allclose(first, second, rtol=1e-9, atol=1e-12)
        case "dense":  # a gradient of all rows beside that of some

            def regularize(side: Side) -> None:
                sum((each**2).sum() for each in side.model.parameters()).mul(1e-3).backward()

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
            for side in twins.sides:
                file = io.BytesIO()
                torch.save([side.model.state_dict(), side.optimizers[0].state_dict()], file)
                file.seek(0)
                values, _ = torch.load(file, weights_only=True)
                assert type(values["users.weight"]) is Tensor
        case "no gradient":  # a step that skips a table
            for side in twins.sides:
                side.zero_grad()
                side.model.get_submodule("users")(torch.tensor(value)).sum().backward()
                side.take_step()
        case "closure":
            for side in twins.sides:

                def closure(side: Side = side) -> Tensor:
                    side.zero_grad()
                    loss: Tensor = (side.model(torch.tensor(value)) ** 2).sum()
                    loss.backward()
                    return loss

                for optimizer in side.optimizers:
                    assert optimizer.step(closure) is not None  # type: ignore[arg-type, func-returns-value]
        case "scaler":
            for side in twins.sides:
                scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
                side.zero_grad()
                scaler.scale((side.model(torch.tensor(value)) ** 2).sum()).backward()
                for optimizer in side.optimizers:
                    if value[0] % 3 == 0:
                        optimizer.param_groups[0]["params"][0].grad.mul_(math.inf)
                    if value[0] % 2:
                        scaler.unscale_(optimizer)
                if value[0] % 2:
                    nn.utils.clip_grad_norm_(side.model.parameters(), 0.1)
                for optimizer in side.optimizers:
                    scaler.step(optimizer)
                scaler.update()
        case "index":
            for side in twins.sides:
                side.zero_grad()
                weight = side.model.get_submodule("items").weight
                (weight[torch.tensor(value) - ROWS] ** 2).sum().backward()
                (torch.index_select(weight, dim=0, index=torch.tensor(value)) ** 3).sum().backward()
                weight[2:4].sum().backward()
                side.take_step()
        case "reload":
            state = copy.deepcopy(twins.models[0].state_dict())
            twins.models[1].load_state_dict(state)
        case "resume" | "resume stock":
            twins.resume(1 if event == "resume" else 0, rows_first=value[0] % 2 == 1)


SHAPES = st.builds(
    Shape,
    width=st.integers(1, 9),
    padding_idx=st.none() | st.integers(0, ROWS - 1),
    mode=st.sampled_from(["sum", "mean"]),
    shared=st.booleans(),
    tied=st.booleans(),
    groups=st.sampled_from(["one", "rates", "two optimizers"]),
    schedule=st.sampled_from(["none", *SCHEDULES]),
    ddp=st.booleans(),
)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@settings(
    max_examples=max(40, settings.default.max_examples),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    shape=SHAPES,
    events=st.lists(EVENTS, min_size=1, max_size=12),
)
@pytest.mark.usefixtures("kernels", "one_rank")
def test_any_program_has_the_results_that_it_had(
    name: str, shape: Shape, events: list[Any]
) -> None:
    twins = Twins(OPTIMIZERS[name], shape)
    for event, value in events:
        act(twins, event, value)
    tables = [each for found in twins.sides[1].rowwise for each in found.tables]
    expected = {"users", "items", "tags"} | (set() if shape.shared else {"others"})
    expected -= set() if not shape.tied else {"users" if shape.shared else "others"}
    assert {each.split(".")[-2] for each in tables} == expected
    twins.check(1e-10)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_has_the_results_that_it_had(name: str) -> None:
    twins = Twins(OPTIMIZERS[name])
    for event in ("step", "accumulate", "norm", "evaluate", "resume", "dense", "no gradient"):
        act(twins, event, [1, 2, 5, 1])
        act(twins, "idle", 5)
    twins.check(1e-10)


@pytest.mark.usefixtures("kernels")
def test_float32_stays_within_rounding_of_dense_adam() -> None:
    torch.manual_seed(1)
    tables = [nn.Embedding(400, 8) for _ in range(2)]
    nn.init.normal_(tables[0].weight, std=0.05)
    tables[1].load_state_dict(tables[0].state_dict())
    optimizers = [torch.optim.Adam(each.parameters(), lr=1e-3) for each in tables]
    rowwise(tables[1], optimizers[1], small=0)
    for step in range(1000):
        ids, target = torch.randint(400, (6,)), torch.rand(6, 8) * 10.0 ** -(step % 8)
        for table, optimizer in zip(tables, optimizers, strict=True):
            optimizer.zero_grad()
            (table(ids) * target).sum().backward()
            optimizer.step()
    stock, ours = (each.weight.detach() for each in tables)
    assert float((stock - ours).abs().max()) <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("first", [1, 2, 10, 60, 300, 1000, 20_000])
def test_idle_rows_of_adam_follow_its_recurrence_whatever_eps_weighs(
    first: int, dtype: torch.dtype
) -> None:
    group = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "lr": 1.0}
    rule = AdamWRule(dtype, torch.device("cpu"), group)
    gradients = 10.0 ** torch.arange(-11, 0, 0.5, dtype=torch.float64)[:, None]
    rule.begin(group, first)
    rule.advance()
    m, v, moved = 0.1 * gradients, 0.001 * gradients**2, torch.zeros_like(gradients)
    start = [each.to(dtype) for each in (moved, m, v)]
    for idle in range(1, 700):
        step, lr = first + idle, 1e-3 * (1.5 + math.sin(idle))
        rule.begin(group | {"lr": lr}, step)
        rule.advance()
        m, v = 0.9 * m, 0.999 * v
        root = (v / (1 - 0.999**step)).sqrt() + 1e-8
        moved = moved - lr / (1 - 0.9**step) * m / root
        if idle in (1, 2, 3, 7, 20, 60, 150, 300, 699):
            rows, *moments = (each.clone() for each in start)
            rule.catch_up(rows, moments, torch.ones(len(gradients), dtype=torch.int64))
            bound = 1e-12 if dtype == torch.float64 else 2e-6
            assert torch.allclose(rows.double(), moved, rtol=bound, atol=0)


@pytest.mark.usefixtures("kernels")
def test_rows_that_no_batch_reads_are_not_touched() -> None:
    """Not a single one: else nothing is gained."""
    table = nn.Embedding(1000, 4)
    optimizer = torch.optim.Adam(table.parameters())
    rowwise(table, optimizer, small=0)
    table(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    before = table.weight.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.tensor([2, 3])).sum().backward()
        optimizer.step()
    stored = table.weight._table.values  # type: ignore[attr-defined]
    changed = (stored != before).any(dim=1).nonzero().squeeze(1)
    assert changed.tolist() == [2, 3]  # row 1 waits
    assert (table.weight != before).any(dim=1).nonzero().squeeze(1).tolist() == [1, 2, 3]


class Unknown(torch.optim.Adam):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def tied_to_a_layer() -> nn.Module:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9, bias=False))
    model[1].weight = model[0].weight
    return model


REFUSED: list[tuple[Callable[[], nn.Module], Callable[[Any], torch.optim.Optimizer], str]] = [
    (Recommender, lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad"),
    (Recommender, lambda p: torch.optim.Adam(p, weight_decay=0.1), "weight_decay"),
    (Recommender, lambda p: torch.optim.Adam(p, eps=0.0), "eps"),
    (Recommender, lambda p: torch.optim.SGD(p, momentum=0.1, weight_decay=0.1), "momentum"),
    (Recommender, lambda p: torch.optim.RMSprop(p, weight_decay=0.1), "weight_decay"),
    (Recommender, lambda p: torch.optim.Adagrad(p, weight_decay=0.1), "weight_decay"),
    (Recommender, lambda p: torch.optim.NAdam(p), "NAdam"),
    (Recommender, Unknown, "Unknown"),
    (lambda: nn.Embedding(9, 2, max_norm=1.0), torch.optim.Adam, "max_norm"),
    (lambda: nn.Embedding(9, 2, scale_grad_by_freq=True), torch.optim.Adam, "scale_grad_by_freq"),
    (lambda: nn.EmbeddingBag(9, 2, mode="max"), torch.optim.Adam, "max"),
    (lambda: nn.Embedding(9, 2).half(), torch.optim.Adam, "float16"),
    (tied_to_a_layer, torch.optim.Adam, r"1\.weight"),
]


@pytest.mark.parametrize(("build", "make", "named"), REFUSED)
def test_what_cannot_be_exact_is_refused_by_name(build: Any, make: Any, named: str) -> None:
    model = build()
    optimizer = make(model.parameters())
    with pytest.raises(UsageError, match=named):
        rowwise(model, optimizer, small=0)
    assert not optimizer._optimizer_step_pre_hooks
    left = rowwise(model, optimizer, small=0, strict=False)
    assert not left.tables
    assert all(re.search(named, why) for why in left.left.values())
    assert all(type(each) is nn.Parameter for each in model.parameters())


def test_small_tables_are_left_to_torch() -> None:
    model = nn.ModuleList([nn.Embedding(1127, 32), nn.Embedding(300_000, 8)])
    found = rowwise(model, torch.optim.Adam(model.parameters()))
    assert found.tables == ["1.weight"]
    assert "36,064" in found.left["0.weight"]
    assert "0.weight" in str(found)
    optimizer = torch.optim.Adam(model[0].parameters())
    assert list(rowwise(model[0], optimizer).left) == ["weight"]
    assert not optimizer._optimizer_step_pre_hooks  # they would cost a small model some per cent
    assert not optimizer._optimizer_step_post_hooks
    # The diagnosis advises it for the same tables. It cannot ask: it imports no torch.
    assert SMALL == {"for_each": LEAST_BY_ROWS, "fused": LEAST_IF_FUSED}


def first_of(optimizer: torch.optim.Optimizer) -> Tensor:
    return optimizer.param_groups[0]["params"][0]  # type: ignore[no-any-return]


def clip_in_hook(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 0.9
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1e-3)


def each(change: Callable[[torch.optim.Optimizer], object]) -> Callable[[Twins], object]:
    return lambda twins: [change(side.optimizers[0]) for side in twins.sides]


def hook_gradients(twins: Twins) -> None:
    for model in twins.models:
        model.get_submodule("users").weight.register_hook(lambda gradient: gradient + 0.01)


def trace(twins: Twins) -> None:
    for side in twins.sides:
        side.network = torch.jit.trace(side.model, torch.tensor([1, 2]))  # type: ignore[no-untyped-call]


def make_another_optimizer(twins: Twins) -> None:
    earlier = twins.sides[1].rowwise[0]
    for side in twins.sides:
        side.optimizers = [OPTIMIZERS["momentum"](side.model.parameters())]
    twins.sides[1].take()
    assert "later" in earlier.left["users.weight"]


CHANGES: dict[str, tuple[Callable[[Twins], object], bool]] = {
    "state cleared": (each(lambda o: o.state.clear()), True),
    "state replaced": (each(lambda o: setattr(o, "state", collections.defaultdict(dict))), True),
    "moment replaced": (
        each(lambda o: o.state[first_of(o)].update(exp_avg=torch.zeros_like(first_of(o)))),
        True,
    ),
    "steps counted anew": (each(lambda o: o.state[first_of(o)]["step"].zero_()), True),
    "group replaced": (
        each(lambda o: o.param_groups.__setitem__(0, o.param_groups[0] | {"lr": 0.05})),
        True,
    ),
    "table dropped": (each(lambda o: o.state.pop(o.param_groups[0]["params"].pop(0))), True),
    "step hook": (each(lambda o: o.register_step_pre_hook(clip_in_hook)), True),
    "later optimizer": (make_another_optimizer, True),
    "gradient hook": (hook_gradients, False),
    "setting": (each(lambda o: o.param_groups[0].update(weight_decay=0.1)), False),
    "removed": (lambda twins: twins.sides[1].rowwise[0].remove(), False),
    "traced": (trace, False),
}
"""A change, and whether rows are exact after it; else torch's optimizer goes on."""


@pytest.mark.filterwarnings("ignore")  # torch's: traces are deprecated
@pytest.mark.usefixtures("kernels", "one_rank")
@pytest.mark.parametrize("name", CHANGES)
def test_a_program_may_change_its_model_and_optimizer_between_steps(name: str) -> None:
    change, exact = CHANGES[name]
    # Ranks that exchanged rows have to exchange whole tables again.
    twins = Twins(OPTIMIZERS["adam"], Shape(ddp=name == "setting"))
    for number in range(9):
        twins.step([[number, 2]])
        if number == 4:
            change(twins)
    assert ("users.weight" in twins.sides[1].rowwise[0].tables) is exact
    assert exact or type(twins.models[1].get_parameter("users.weight")) is nn.Parameter
    twins.check()


def add_to_clone(weight: Tensor) -> None:
    kept = weight.grad.clone()  # type: ignore[union-attr]
    kept.add_(0.1)
    weight.grad = kept


def add_and_read(weight: Tensor) -> None:
    kept = weight.grad
    assert kept is not None
    kept.add_(0.1)
    weight.grad = kept * 2


def add_to_earlier(weight: Tensor) -> None:
    earlier, weight.grad = weight.grad, None
    weight[torch.tensor([3, 4])].sum().backward()  # type: ignore[no-untyped-call]
    assert earlier is not None
    assert weight.grad is not None
    earlier += weight.grad
    earlier.sub_(0.2)
    weight.grad = earlier


GRADIENTS: dict[str, Callable[[Tensor], object]] = {
    "view": lambda w: w.grad[2].fill_(0.3),  # type: ignore[index]
    "transposed": lambda w: w.grad.t().add_(0.1),  # type: ignore[union-attr]
    "clone": add_to_clone,
    "read again": add_and_read,
    "earlier": add_to_earlier,
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("change", GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient_may_be_changed_through_all_that_shares_its_memory(
    change: Callable[[Tensor], object],
) -> None:
    twins = Twins(OPTIMIZERS["adam"])
    for number in range(4):
        twins.step([[number, 2]], 1.0, lambda s: change(s.model.get_parameter("users.weight")))
    assert "users.weight" in twins.sides[1].rowwise[0].tables
    twins.check()


def test_hooks_behind_a_step_see_its_gradients() -> None:
    table, norms = nn.Embedding(9, 2), []
    optimizer = torch.optim.Adam(table.parameters())
    optimizer.register_step_post_hook(lambda *_: norms.append(table.weight.grad.norm().item()))
    rowwise(table, optimizer, small=0)
    table(torch.tensor([1])).sum().backward()
    optimizer.step()
    assert norms == pytest.approx([math.sqrt(2)])


def test_torchs_function_transforms_read_current_rows() -> None:
    twins, found = Twins(OPTIMIZERS["adam"]), []
    for number in range(4):
        twins.step([[number, 2]])
    for model in twins.models:
        weight = model.get_parameter("users.weight").detach()
        found.append(
            torch.func.vmap(lambda id, weight=weight: F.embedding(id, weight))(torch.arange(4))
        )
    assert torch.allclose(*found, rtol=0, atol=1e-12)


def test_a_compiled_program_is_compiled_once() -> None:
    """Its lookups are made between the compiled parts: which rows wait changes in each step."""
    counter = CompileCounter()
    twins = Twins(OPTIMIZERS["adam"])
    for side in twins.sides:
        side.network = torch.compile(side.model, backend=counter if side.rowwise else "eager")
    counts = []
    for number in range(6):
        twins.step([[number, 2]])
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1] > 0
    assert "users.weight" in twins.sides[1].rowwise[0].tables
    twins.check()


def test_a_table_that_becomes_half_precision_is_given_back() -> None:
    twins = Twins(OPTIMIZERS["adam"])
    twins.step([[1, 2]])
    for model in twins.models:
        model.half()
    assert not twins.sides[1].rowwise[0].tables
    twins.check()


def test_a_copy_of_the_model_trains_as_one_that_never_had_rows() -> None:
    model = Recommender()
    rowwise(model, torch.optim.Adam(model.parameters()), small=0)
    copied = copy.deepcopy(model)
    optimizer = torch.optim.Adam(copied.parameters())
    copied(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert not copied.users.weight.grad.is_sparse


def read_every_row(side: Side) -> None:
    with torch.no_grad():
        side.model.eval()(torch.arange(ROWS))


def steps(*batches: list[int]) -> Callable[[Twins], None]:
    return lambda twins: [twins.step([batch]) for batch in batches] and None


def then_read(twins: Twins) -> None:
    steps([1, 2], [3], [4])(twins)
    for side in twins.sides:
        read_every_row(side)


STATES: dict[str, Callable[[Twins], None]] = {
    "no step yet": lambda _: None,
    "no row waits": steps([1, 2], list(range(ROWS))),
    "some rows wait": steps([1, 2], [3], [3, 4]),
    "all rows wait": lambda t: (steps([1, 2], [3])(t), act(t, "no gradient", [5]))[0],
    "rows never touched": steps([0], [0], [0]),
    "after evaluation": then_read,
    "after a reset of the state": lambda t: (
        steps([1])(t),
        [side.optimizers[0].state.clear() for side in t.sides],
    )[0],
}


def load(values: bytes) -> Any:
    return torch.load(io.BytesIO(values), weights_only=False)


def saved(thing: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    return load(file.getvalue())


def users(side: Side) -> Any:
    return side.model.get_submodule("users").weight


VIEWS: dict[str, Callable[[Side], Any]] = {
    "torch.save of the model": lambda s: saved(s.model).state_dict(),
    "torch.save of the state": lambda s: saved(s.model.state_dict()),
    "torch.save of the optimizer": lambda s: saved(s.optimizers[0].state_dict()),
    "torch.save of the optimizer object": lambda s: saved(s.optimizers[0].state_dict)(),
    "torch.save of a parameter": lambda s: saved(users(s)),
    "pickle": lambda s: pickle.loads(pickle.dumps(s.model)).state_dict(),
    "copy.copy": lambda s: copy.copy(s.model).state_dict(),
    "deepcopy": lambda s: copy.deepcopy(s.model).state_dict(),
    "deepcopy of the optimizer": lambda s: copy.deepcopy(s.optimizers[0]).state_dict(),
    "state_dict": lambda s: s.model.state_dict(),
    "optimizer.state_dict": lambda s: s.optimizers[0].state_dict(),
    "optimizer.state": lambda s: [dict(each) for each in s.optimizers[0].state.values()],
    "load_state_dict": lambda s: (
        s.model.load_state_dict(copy.deepcopy(s.model.state_dict())),
        s.optimizers[0].load_state_dict(copy.deepcopy(s.optimizers[0].state_dict())),
        s.model.state_dict(),
    )[-1],
    "data": lambda s: users(s).data,
    "detach": lambda s: users(s).detach(),
    "numpy": lambda s: users(s).detach().numpy(),
    "tolist": lambda s: users(s).tolist(),
    "one row": lambda s: users(s)[5],
    "rows": lambda s: users(s)[torch.tensor([0, 5, 5])],
    "a slice": lambda s: users(s)[2:],
    "a mask": lambda s: users(s)[torch.arange(ROWS) > 3],
    "evaluation": lambda s: s.model.eval()(torch.arange(ROWS)),
    "a product": lambda s: users(s) @ users(s).t(),
    "a norm": lambda s: users(s).norm(),
    "to": lambda s: users(s).to(torch.float32, copy=True),
    "model.to": lambda s: s.model.to("cpu").state_dict(),
    "float": lambda s: s.model.float().double().state_dict(),
    "half": lambda s: s.model.half().double().state_dict(),
    "repr": lambda s: repr(users(s)),
    "str": lambda s: f"{users(s)} {users(s)[5]}",
    "parameters_to_vector": lambda s: nn.utils.parameters_to_vector(s.model.parameters()),
    "average of weights": lambda s: torch.optim.swa_utils.AveragedModel(s.model).state_dict(),
}


def flat(value: Any) -> Tensor:
    """Its numbers; of a text, without the digits that rounding decides."""
    if isinstance(value, str):
        numbers = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", value)
        return torch.tensor([round(float(each), 3) for each in numbers], dtype=torch.float64)
    leaves = torch.utils._pytree.tree_leaves(value)
    tensors = [torch.as_tensor(each) for each in leaves if not isinstance(each, str | None)]
    return torch.cat([each.detach().double().flatten() for each in tensors] or [torch.zeros(0)])


@pytest.mark.parametrize("state", STATES)
def test_every_view_of_a_table_in_every_state_is_current(state: str, kernels: str) -> None:
    for view, see in VIEWS.items():
        for name in ["adam"] if kernels == "compiled" else ["adam", "momentum"]:
            twins = Twins(OPTIMIZERS[name])
            STATES[state](twins)
            for _ in range(2):
                stock, ours = (flat(see(side)) for side in twins.sides)
                assert torch.allclose(ours, stock, rtol=1e-9, atol=1e-12), (view, name)
            steps([1, 2], [6])(twins)
            twins.check()


def no_memory(*_: object) -> None:
    raise RuntimeError("[enforce fail at alloc_cpu.cpp] not enough memory\nmore lines")


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("when", ["lookup", "step", "save", "release"])
@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("kernels")
def test_a_failing_remedy_gives_the_table_back_up_to_date(
    name: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = Twins(OPTIMIZERS[name])
    if not users(twins.sides[1])._table.rule.waits:
        pytest.skip("its rows never wait")
    steps([1, 2], [3], [3, 4])(twins)
    (found,) = twins.sides[1].rowwise
    monkeypatch.setattr(row_rules.RowRule, "catch_up", no_memory)
    monkeypatch.setattr(row_kernels.RowKernels, "catch_up", no_memory)
    if when == "lookup":
        twins.step([[5, 1]])
    elif when == "step":
        act(twins, "dense", [1])
    elif when == "save":
        saved(twins.sides[1].model)
    else:
        found.remove()
    twins.check()
    monkeypatch.undo()
    steps([7], [1, 2])(twins)
    twins.check()
    assert type(users(twins.sides[1])) is nn.Parameter
    assert "users.weight" not in found.tables
    assert "not enough memory" in found.left["users.weight"]


@pytest.mark.parametrize("name", ["adam", "momentum", "sgd", "adamw, fused"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_step_by_rows_that_fails_is_taken_by_torch(
    name: str, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = Twins(OPTIMIZERS[name])
    steps(*[[1, 2]] * before)(twins)
    for kind in (row_rules.AdamRule, row_rules.SgdRule):
        monkeypatch.setattr(kind, "take", no_memory)
    monkeypatch.setattr(row_kernels, "library", lambda: None)
    twins.sides[1].take()  # without the compiled loops
    found = twins.sides[1].rowwise[0]
    with pytest.warns(UserWarning, match="not enough memory") as warned:
        steps([4], [1, 2], [6])(twins)
    twins.check()
    assert found.tables == []
    assert len(warned) == len(found.left)


def test_rowwise_adam_is_adam() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(140_000, 4), nn.Linear(4, 1))
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01), RowwiseAdam(twin, lr=0.01)]
    for step in range(5):
        for each, optimizer in zip((model, twin), optimizers, strict=True):
            optimizer.zero_grad()
            each(torch.tensor([step, 7])).sum().backward()
            optimizer.step()
    assert isinstance(optimizers[1], RowwiseAdam)
    assert optimizers[1].rowwise.tables == ["0.weight"]
    assert torch.allclose(model[0].weight, twin[0].weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [9, 3000])
def test_a_table_of_which_each_step_reads_much_is_given_back(rows: int) -> None:
    torch.manual_seed(0)
    tables = nn.ModuleList([nn.Embedding(10_000, 64) for _ in range(2)])
    twin = copy.deepcopy(tables)
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01) for each in (tables, twin)]
    found = rowwise(twin, optimizers[1])
    for step in range(25):
        for model, optimizer in zip((tables, twin), optimizers, strict=True):
            optimizer.zero_grad()
            (model[0](torch.arange(step, 3000 + step)) ** 2).sum().backward()
            (model[1](torch.arange(rows)) ** 2).sum().backward()
            optimizer.step()
    reason = "a step reads 30% of its rows"
    assert found.tables == ["1.weight"] * (rows == 9)
    assert found.left == {"0.weight": reason} | ({"1.weight": reason} if rows > 9 else {})
    assert bool(optimizers[1]._optimizer_step_pre_hooks) == bool(found.tables)
    for first, second in zip(tables.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(first, second, rtol=0, atol=1e-6)


@pytest.mark.parametrize("each", [1, 5])
def test_a_table_that_the_program_reads_whole_in_each_step_is_given_back(each: int) -> None:
    table = nn.Embedding(10_000, 64)
    optimizer = torch.optim.Adam(table.parameters())
    found = rowwise(table, optimizer)
    for step in range(25):
        optimizer.zero_grad()
        (table(torch.tensor([step])) ** 2).sum().backward()
        optimizer.step()
        if step % each == 0:
            table.weight.data.clamp_(-1, 1)
    assert found.left == ({"weight": "a step reads 100% of its rows"} if each == 1 else {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_loops_move_rows_as_torch_does(dtype: torch.dtype) -> None:
    if row_kernels.library() is None:
        pytest.skip("for the compiled loops")
    ends = []
    for library in (row_kernels.library, lambda: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_kernels, "library", library)
            torch.manual_seed(0)
            table = nn.Embedding(300, 19, dtype=dtype)
            optimizer = torch.optim.AdamW(table.parameters(), lr=0.01, weight_decay=0.1)
            rows = rowwise(table, optimizer, small=0)
            taken = rows._tables["weight"]
            for step in range(150):
                optimizer.param_groups[0]["lr"] = 0.01 / (1 + step % 7)
                # Gradients near eps: the series converges too slowly for some of them.
                scale = 10.0 ** -(step % 10)
                optimizer.zero_grad()
                (table(torch.randint(300, (12,))).pow(2).sum() * scale).backward()
                optimizer.step()
            assert (taken._kernels is not None) == (library() is not None)
            ends.append(table.weight.detach().clone())
    assert torch.allclose(*ends, rtol=0, atol=2e-6 if dtype == torch.float32 else 1e-14)
