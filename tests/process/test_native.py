"""The compiled engine against torch: the same instances, gradients and updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from hpcncf.data import epoch_order, synthetic
from hpcncf.data.arrays import build_buckets, pack_rows
from hpcncf.data.negatives import sample_negatives
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.native import builds
from hpcncf.native.builds import Span
from hpcncf.ncf.batches import Schedule
from hpcncf.ncf.engines.native import NativeEngine
from hpcncf.ncf.evaluate import rank_test_rows
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.model import NeuMF, initial_model
from hpcncf.ncf.step_clock import StepClock

USERS, ITEMS, ROWS, CONTEXT, BATCH = 50, 70, 2000, 5, 64
BUILDS = [
    name
    for name in builds.installed_builds()
    if builds.select_build({name: builds.installed_builds()[name]}, builds.cpu_flags())
]

NO_LOADER: Any = None
LENGTHS = [
    *(1, 7, 8, 9, 17, 31, 32, 33, 64, 65, 127, 128, 129, 250, 255, 256, 257, 511, 512, 513),
    *(1_700, 2_990),
]

pytestmark = [
    pytest.mark.skipif(not BUILDS, reason="engine native was not built here"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("native") / "made"
    synthetic.prepare_synthetic(folder, USERS, ITEMS, ROWS, CONTEXT, test_negatives=20)
    return load_prepared(folder)


def settings(**changes: Any) -> Training:
    # As the job file will say them; validated where it is read.
    return Training(global_batch_size=BATCH).model_copy(update=changes)


def engine(
    data: PreparedData,
    model: NeuMF,
    sizes: Model,
    training: Training,
    threads: int = 1,
    build: str | None = None,
) -> NativeEngine:
    schedule = Schedule(data.manifest.train_rows, training.global_batch_size or 256)
    clock = StepClock(1, schedule.steps)
    return NativeEngine(model, data, sizes, training, schedule, threads, clock, build)


def fresh(data: PreparedData, sizes: Model, doubles: bool = False) -> NeuMF:
    model = initial_model(data.manifest, sizes, 1)
    return model.double() if doubles else model


def take(native: NativeEngine, steps: int) -> None:
    per_epoch, taken, epoch = native._schedule.steps, 0, 0
    while taken < steps:
        some = range(min(per_epoch, steps - taken))
        batches = native.batches(NO_LOADER, epoch, some)
        for step in some:
            native.step(batches, native._schedule.positives(step) * (1 + native.kernel.negatives))
        taken, epoch = taken + len(some), epoch + 1


def batches(data: PreparedData, training: Training, steps: int) -> Iterator[Any]:
    schedule = Schedule(data.manifest.train_rows, training.global_batch_size or 256)
    loader, epoch = RankLoader(data, training.model_copy(update={"optimizer": "adam"}), schedule), 0
    while steps > 0:
        some = range(min(steps, schedule.steps))
        yield from loader.epoch(epoch, some)
        steps, epoch = steps - len(some), epoch + 1


def reference(
    data: PreparedData, model: NeuMF, training: Training, steps: int, make: Callable[..., Any]
) -> float:
    """torch's own steps on the same instances; returns the sum of the losses."""
    optimizers, total = make(model), 0.0
    kind = model.predict_layer.weight.dtype
    for batch in batches(data, training, steps):
        logits = model(batch.users, batch.items, batch.context.to(kind))
        loss = binary_cross_entropy_with_logits(logits, batch.labels.to(kind), reduction="sum")
        (loss / len(batch.labels)).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        total += float(loss.detach())
    return total


def furthest(ours: NeuMF, theirs: NeuMF) -> float:
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return max(
        float((mine.double() - other.double()).abs().max().detach()) for mine, other in pairs
    )


SHAPES = [
    Model(),
    Model(layers=(64, 32, 16, 8)),
    Model(gmf_width=5, mlp_width=11, layers=(13,)),
    Model(gmf_width=16, mlp_width=24, layers=(40, 9)),
]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("negatives", [1, 4, 6])
def test_the_instances_are_those_of_every_loader(
    data: PreparedData, negatives: int, build: str
) -> None:
    training = settings(negatives=negatives, seed=2**40 + 7)
    native = engine(data, fresh(data, Model()), Model(), training, build=build)
    for epoch, start, stop in [(0, 0, BATCH), (3, 100, 163), (2, ROWS - 5, ROWS), (0, 7, 7)]:
        rows, users, items = native.kernel.draw(Span(epoch, start, stop))
        expected = epoch_order.epoch_rows(training.seed, epoch, start, stop, ROWS)
        assert rows.tolist() == expected.tolist()
        owners = np.asarray(data.train_users)[rows].astype(np.int64)
        assert users.tolist() == owners.tolist()
        assert items[:, 0].tolist() == data.train_items[rows].tolist()
        drawn = sample_negatives(
            training.seed,
            epoch,
            expected,
            owners,
            np.asarray(data.positives_indptr),
            np.asarray(data.positives),
            ITEMS,
            negatives,
        )
        assert items[:, 1:].tolist() == drawn.tolist()


@pytest.mark.parametrize("build", BUILDS)
def test_many_rows_come_in_the_blocks_of_every_loader(
    data: PreparedData, build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_order, "MANY_ROWS", 100)
    training = settings(global_batch_size=ROWS)
    native = engine(data, fresh(data, Model()), Model(), training, build=build)
    spans = [(0, 0, ROWS), (1, 3, 70), (2, 64, 80), (3, 17, 18), (4, ROWS - 20, ROWS), (5, 9, 9)]
    for epoch, start, stop in spans:
        rows, _, _ = native.kernel.draw(Span(epoch, start, stop))
        expected = epoch_order.epoch_rows(training.seed, epoch, start, stop, ROWS)
        assert rows.tolist() == expected.tolist()


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("sizes", SHAPES)
def test_one_step_is_torchs(data: PreparedData, sizes: Model, build: str) -> None:
    """In doubles, with sgd: the difference of the parameters is the gradient."""
    training = settings(optimizer="sgd", lr=1.0, negatives=3)
    ours, theirs = fresh(data, sizes, True), fresh(data, sizes, True)
    native = engine(data, ours, sizes, training, build=build)
    take(native, 2)
    native.settle()
    loss = reference(
        data, theirs, training, 2, lambda model: [torch.optim.SGD(model.parameters(), lr=1.0)]
    )
    assert furthest(ours, theirs) < 1e-13
    assert float(native.loss) == pytest.approx(loss, rel=1e-13)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("small", [0, 2, CONTEXT])
def test_a_byte_of_context_is_its_number(data: PreparedData, small: int, build: str) -> None:
    context = np.random.default_rng(1).random((ROWS, CONTEXT), dtype=np.float32)
    context[:, CONTEXT - small :] = np.arange(ROWS * small).reshape(ROWS, small) % 256
    made = replace(
        data,
        manifest=data.manifest.model_copy(update={"small_columns": small}),
        train_rows=pack_rows(data.train_users, data.train_items, context, small),
    )
    training = settings(optimizer="sgd", lr=0.0)
    native = engine(made, fresh(made, Model(), True), Model(), training, build=build)
    take(native, 1)
    loss = reference(
        *(made, fresh(made, Model(), True), training, 1),
        lambda model: [torch.optim.SGD(model.parameters(), lr=0.0)],
    )
    assert float(native.loss) == pytest.approx(loss, rel=1e-13)


def test_any_number_of_threads_gives_the_same_bits_twice(data: PreparedData) -> None:
    def trained(threads: int) -> list[bytes]:
        model = fresh(data, Model())
        native = engine(data, model, Model(), settings(), threads)
        take(native, 60)
        native.settle()
        values = [each.detach().contiguous().numpy().tobytes() for each in model.parameters()]
        return [*values, float(native.loss).hex().encode()]

    one = trained(1)
    assert all(trained(threads) == one for threads in (1, 2, 2, 5))


def test_steps_in_one_call_are_those_one_by_one(data: PreparedData) -> None:
    """The same bits and the same loss, and each step ends on the clock."""
    sizes, training = Model(), settings()
    one, many = (engine(data, fresh(data, sizes), sizes, training) for _ in range(2))
    steps, instances, calls = one._schedule.steps - 1, BATCH * 5, 0
    take(one, steps)
    batches, left = many.batches(NO_LOADER, 0, range(steps)), steps
    while left:
        many.clock.start()
        _, taken = many.step(batches, instances, left)
        many.clock.end_step(taken[-1])
        assert set(taken) == {instances}
        left, calls = left - len(taken), calls + 1
    assert calls < steps == many.clock.steps
    assert torch.equal(one.loss, many.loss)
    one.settle()
    many.settle()
    assert one.kernel.users.tobytes() == many.kernel.users.tobytes()
    assert one.kernel.dense[0].tobytes() == many.kernel.dense[0].tobytes()
    assert all(0 < seconds < 10 for seconds in many.clock.batches().seconds)


@pytest.mark.parametrize("candidates", ["sampled", "full"])
def test_ranks_are_those_of_torch_in_doubles_and_by_threads(
    data: PreparedData, candidates: Any
) -> None:
    model = fresh(data, SHAPES[-1], True)
    native = engine(data, model, SHAPES[-1], settings(), threads=2)
    rows = len(data.test_users)
    ours = torch.cat(list(native.ranks(data, 0, rows, candidates)))
    theirs = torch.cat(list(rank_test_rows(model, data, 0, rows, candidates)))
    assert ours.tolist() == theirs.tolist()


def test_what_is_no_number_counts_against_the_model_and_shows_in_the_loss(
    data: PreparedData,
) -> None:
    native = engine(data, fresh(data, Model()), Model(), settings())
    native.kernel.users[:] = np.nan
    ranks = native.kernel.ranks(
        data.test_users, data.test_items, data.test_context, data.test_negatives
    )
    assert set(ranks.tolist()) == {20}
    rows = np.array(data.train_rows)
    rows["numbers"][:, 0] = np.nan
    native = engine(replace(data, train_rows=rows), fresh(data, Model()), Model(), settings())
    take(native, 1)
    assert np.isnan(float(native.loss))


def with_positives(
    data: PreparedData, held: list[list[int]], item_count: int = ITEMS
) -> PreparedData:
    """Data in which each user has just these items, each once."""
    users = np.repeat(np.arange(len(held)), [len(each) for each in held]).astype(np.int32)
    items = np.array([item for each in held for item in each], dtype=np.int32)
    indptr = np.concatenate([[0], np.cumsum([len(each) for each in held])])
    bounds, table = build_buckets(indptr, items)
    manifest = data.manifest.model_copy(
        update={
            **{"users": len(held), "items": item_count, "buckets": len(table)},
            **{"train_rows": len(users), "train_pairs": len(users)},
        }
    )
    context = np.zeros((len(users), CONTEXT))
    return replace(
        data,
        manifest=manifest,
        train_rows=pack_rows(users, items, context, manifest.small_columns),
        positives_indptr=indptr,
        positives=items,
        buckets_indptr=bounds,
        buckets=table,
    )


def test_a_user_with_one_positive_and_one_with_all_items_but_one(data: PreparedData) -> None:
    made = with_positives(data, [[3], [item for item in range(ITEMS) if item != 17]])
    native = engine(made, fresh(made, Model()), Model(), settings())
    _, users, items = native.kernel.draw(Span(0, 0, 60))
    assert set(items[users == 1, 1:].ravel().tolist()) == {17}
    assert 3 not in items[users == 0, 1:]
    take(native, 3)


@pytest.fixture(scope="module", params=[3_000, 80_000])
def long_lists(
    data: PreparedData, request: pytest.FixtureRequest
) -> tuple[PreparedData, NDArray[np.int64], NDArray[np.int64]]:
    """Users with many positives of so many items, the rows of an epoch, and their negatives."""
    count, random = request.param, np.random.default_rng(1)
    anywhere = [sorted(random.choice(count, held, replace=False).tolist()) for held in LENGTHS]
    together = [[*range(900)], [*range(2_000, count)], [*range(0, count, 2)]]
    together += [[*range(first, first + 200)] for first in (0, 500, count - 200)]
    split = [[*range(40), *range(1_000, 1_400), *range(2_990, count)], [*range(1, count)]]
    made = with_positives(data, [*anywhere, *together, *split], count)
    length = made.manifest.train_rows
    seed, indptr = settings().seed, np.asarray(made.positives_indptr)
    rows = epoch_order.epoch_rows(seed, 2, 0, length, length)
    users = np.asarray(made.train_users)[rows].astype(np.int64)
    positives = np.asarray(made.positives)
    return made, rows, sample_negatives(seed, 2, rows, users, indptr, positives, count, 9)


@pytest.mark.parametrize("build", BUILDS)
def test_long_lists_of_positives_leave_the_negatives_as_they_are(
    long_lists: tuple[PreparedData, NDArray[np.int64], NDArray[np.int64]], build: str
) -> None:
    """Of so many items that two share a key, too."""
    made, expected_rows, negatives = long_lists
    length = made.manifest.train_rows
    training = settings(negatives=9, global_batch_size=length)
    native = engine(made, fresh(made, Model()), Model(), training, build=build)
    rows, users, items = native.kernel.draw(Span(2, 0, length))
    assert np.array_equal(rows, expected_rows)
    assert np.array_equal(users, made.train_users[rows])
    assert np.array_equal(items[:, 1:], negatives)


def with_row(data: PreparedData, name: str, value: int) -> PreparedData:
    rows = np.array(data.train_rows)
    rows[name][7] = value
    return replace(data, train_rows=rows)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: replace(data, buckets=data.buckets[1:]), "buckets"),
        (lambda data: replace(data, buckets=data.buckets + np.uint16(1)), "buckets"),
        (lambda data: with_row(data, "user", USERS), "user 50 at 7: expected 0 to 49"),
        (lambda data: with_row(data, "item", -1), "item -1 at 7"),
        (
            lambda data: with_positives(data, [[3], list(range(ITEMS))]),
            f"user 1 has all {ITEMS} items",
        ),
    ],
)
def test_data_that_cannot_be_is_refused(
    data: PreparedData, spoil: Callable[[PreparedData], PreparedData], message: str
) -> None:
    other = spoil(data)
    with pytest.raises(HpcncfError, match=message):
        engine(other, fresh(other, Model()), Model(), settings())


def test_positions_out_of_range_and_dropout_are_refused(data: PreparedData) -> None:
    native = engine(data, fresh(data, Model()), Model(), settings())
    with pytest.raises(HpcncfError, match="expected within 0 to 2000"):
        native.kernel.step(Span(0, ROWS - 3, ROWS + 1), 1.0)
    with pytest.raises(HpcncfError, match="made for at most 64"):
        native.kernel.step(Span(0, 0, BATCH + 1), 1.0)
    with pytest.raises(HpcncfError, match=r"dropout 0\.1: engine native has no dropout"):
        engine(data, fresh(data, Model(dropout=0.1)), Model(dropout=0.1), settings())


def test_an_empty_batch_moves_what_idles(data: PreparedData) -> None:
    native = engine(data, fresh(data, Model()), Model(), settings())
    take(native, 3)
    assert native.kernel.step(Span(0, 5, 5), 1.0) == 0
    native.settle()
    assert native.kernel.steps == 4


def test_the_best_build_that_the_cpu_can_run_is_chosen() -> None:
    built = dict.fromkeys(builds.BUILDS, Path("somewhere"))
    assert builds.select_build(built, {"avx2", "fma", "sse2"}) == "avx2"
    assert builds.select_build(built, set()) == "baseline"
    assert builds.select_build(built, builds.BUILDS["avx512"]) == "avx512"
    assert builds.select_build({}, builds.BUILDS["avx512"]) is None
    with pytest.raises(builds.NotBuilt, match="engine rowwise gives the same results") as caught:
        builds.load_library("none")
    assert "\n" not in str(caught.value)


def test_it_reads_the_mapped_pages(data: PreparedData) -> None:
    kept = engine(data, fresh(data, Model()), Model(), settings()).kernel._kept
    mapped = (data.train_rows, data.positives_indptr, data.positives)
    for ours, theirs in zip(kept, (*mapped, data.buckets_indptr, data.buckets), strict=True):
        assert np.shares_memory(ours, theirs)
