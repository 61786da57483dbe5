"""The compiled engine's step in two halves, between which ranks exchange their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hpcncf.data import synthetic
from hpcncf.data.epoch_order import rank_shard
from hpcncf.data.prepared import PreparedData, load_prepared
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Model, Training
from hpcncf.native.builds import Span, cpu_flags, installed_builds, select_build
from hpcncf.ncf.engines.native import NO_SPAN, Bytes, Kernel

BATCH, ROWS, LINE = 64, 1000, 64

pytestmark = pytest.mark.skipif(
    select_build(installed_builds(), cpu_flags()) is None,
    reason="engine native was not built here",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("native") / "made"
    synthetic.prepare_synthetic(folder, 50, 70, ROWS, 5, test_negatives=20)
    return load_prepared(folder)


def kernel(
    data: PreparedData, optimizer: Any = "adam", threads: int = 1, doubles: bool = False
) -> Kernel:
    """With parameters that all kernels of a test share."""
    training = Training(global_batch_size=BATCH).model_copy(update={"optimizer": optimizer})
    made = Kernel(data, Model(), training, threads, BATCH, doubles)
    draw = np.random.default_rng(5)
    made.users[:, :40] = draw.normal(0, 0.1, made.users[:, :40].shape)
    made.items[:, :40] = draw.normal(0, 0.1, made.items[:, :40].shape)
    made.dense[0][:] = draw.normal(0, 0.2, made.dense[0].shape)
    return made


def slot(capacity: int) -> Bytes:
    room = np.zeros(capacity + LINE, dtype=np.uint8)
    start = -room.ctypes.data % LINE
    return room[start : start + capacity]


def spans(steps: int) -> Iterator[Span]:
    """Of all ranks; every fifth step has fewer positives than there are ranks."""
    for step in range(steps):
        start = step * BATCH % (ROWS - BATCH)
        yield Span(step // 10, start, start + (1 if step % 5 == 4 else BATCH - step % 3))


def scale(span: Span, of: Kernel) -> float:
    return 1 / float((span.stop - span.start) * (1 + of.negatives))


def share(span: Span, rank: int, ranks: int) -> Span:
    return Span(span.epoch, *rank_shard(span.start, span.stop, rank, ranks))


def message(
    of: Kernel, span: Span, rank: int, ranks: int, following: Span = NO_SPAN
) -> tuple[float, Bytes]:
    """A rank's share of `span`; `following` is all ranks' next."""
    mine, behind, room = share(span, rank, ranks), share(following, rank, ranks), slot(of.capacity)
    loss, size = of.gradients(mine, scale(span, of), room, behind)
    return loss, room[:size]


def together(kernels: list[Kernel], steps: int, ahead: bool = False) -> float:
    """Steps of all ranks, messages passed by hand; returns the sum of the losses."""
    total = 0.0
    for span, behind in pairwise([*spans(steps), NO_SPAN]):
        following = behind if ahead else NO_SPAN
        sent = [
            message(each, span, rank, len(kernels), following) for rank, each in enumerate(kernels)
        ]
        for each in kernels:
            each.apply([parts for _, parts in sent])
        total += sum(loss for loss, _ in sent)
    return total


def alone(of: Kernel, steps: int) -> float:
    return sum(of.step(span, scale(span, of)) for span in spans(steps))


def values(of: Kernel) -> list[Any]:
    of.settle()
    return [of.users[:, :40], of.items[:, :40], of.dense[0]]


def test_every_rank_has_the_same_bits_whatever_its_threads(data: PreparedData) -> None:
    many = [kernel(data, threads=threads) for threads in (1, 2, 3)]
    together(many, 40)
    expected = [part.tobytes() for part in values(many[0])]
    for other in many[1:]:
        assert [part.tobytes() for part in values(other)] == expected


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_drawn_and_asked_for_ahead_changes_no_bit(data: PreparedData, ranks: int) -> None:
    """Batches of other sizes, others' shares of none, and ends of epochs among them."""
    ahead, plain = ([kernel(data) for _ in range(ranks)] for _ in range(2))
    assert together(ahead, 40, ahead=True) == together(plain, 40)
    for mine, theirs in zip(values(ahead[-1]), values(plain[-1]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_drawing_between_steps_changes_no_bit(data: PreparedData) -> None:
    drawn, plain = kernel(data), kernel(data)
    for span, behind in pairwise([*spans(40), NO_SPAN]):
        assert drawn.step(span, 1, behind) == plain.step(span, 1)
        drawn.draw(Span(3, 5, 30))
    for mine, theirs in zip(values(drawn), values(plain), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_halves_of_a_rank_alone_are_its_whole_step(data: PreparedData) -> None:
    halves, whole = kernel(data), kernel(data)
    assert together([halves], 40) == alone(whole, 40)
    for mine, theirs in zip(values(halves), values(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_rank_with_no_instance_sends_its_head_alone(data: PreparedData) -> None:
    _, empty = message(kernel(data), Span(0, 7, 8), rank=0, ranks=2)
    assert len(empty) == LINE


def spoilt(good: Bytes, at: int, value: int) -> Bytes:
    """With another number (int64) in the head."""
    copy = slot(len(good))
    copy[:] = good
    copy[at : at + 8].view(np.int64)[0] = value
    return copy


def test_a_message_that_is_none_is_refused_and_changes_nothing(data: PreparedData) -> None:
    of = kernel(data)
    good = message(of, Span(0, 0, BATCH), 0, 1)[1]
    before = [part.tobytes() for part in (of.users, of.items, of.dense[0])]
    ids_at = LINE + -(-of.dense[0].nbytes // LINE) * LINE
    for bad, reason in (
        (good[:40], "shorter than its head"),
        (good[:-LINE], "another size"),
        (good[8:], "cache line"),
        (spoilt(good, 0, 5), "another mark"),
        (spoilt(good, 8, 7), "other sizes"),
        (spoilt(good, 16, 51), "more rows than the table"),
        (spoilt(good, 24, -1), "more rows than the table"),
        (spoilt(good, ids_at, (3 << 32) + 50), "row 50 after -1"),
        (spoilt(good, ids_at, (3 << 32) + 3), "row 3 after 3"),
    ):
        with pytest.raises(HpcncfError, match=reason):
            of.apply([good, bad])
    assert [part.tobytes() for part in (of.users, of.items, of.dense[0])] == before
    assert of.steps == 0


def test_a_slot_too_small_is_refused(data: PreparedData) -> None:
    of = kernel(data)
    with pytest.raises(HpcncfError, match="a message may need"):
        of.gradients(Span(0, 0, 4), 1.0, slot(of.capacity - 1))
