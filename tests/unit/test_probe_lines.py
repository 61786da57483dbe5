"""Which line is worked on, where only a later one lets go of the lock."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from types import CodeType, ModuleType
from typing import Any, Final

import numpy as np
import pytest

INJECT = Path(__file__).parents[2] / "hpcncf/probe/inject"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(INJECT))
    from _hpcncf_probe import lines

    yield lines
    for name in [name for name in sys.modules if name.startswith("_hpcncf_probe")]:
        del sys.modules[name]


def update(ratings: Any, p: Any, q: Any) -> float:
    error = 0.0
    for u, i, r in ratings:
        e = r - p[u] @ q[i]
        p[u] += 0.1 * (e * q[i] - 0.2 * p[u])
        error += e * e
    return error


def last_jump(code: CodeType) -> int:
    dis = pytest.importorskip("dis")
    return max(
        one.offset for one in dis.get_instructions(code) if one.opname.startswith("JUMP_BACKWARD")
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="earlier Pythons look after each operation")
def test_samples_at_the_jump_are_shared_by_the_lines_of_the_body(lines: ModuleType) -> None:
    code = update.__code__
    seen = Counter(lines.worked_on(code, last_jump(code)) for _ in range(1000))
    first = code.co_firstlineno
    assert seen.most_common(1)[0][0] == first + 4  # the line with most operations
    assert set(seen) >= {first + 3, first + 4, first + 5}


def negatives(seen: Any, draw: Any) -> list[int]:
    found = []
    for user in range(4):
        j = draw(0, 9)
        while j in seen[user]:
            j = draw(0, 9)
        found.append(j)
    return found


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="a loop's condition is repeated below")
def test_a_condition_before_an_append_has_its_share(lines: ModuleType) -> None:
    code = negatives.__code__
    seen = Counter(lines.worked_on(code, last_jump(code)) for _ in range(900))
    first = code.co_firstlineno
    assert seen == {first + 4: 600, first + 6: 300}


class Ratings:
    def __init__(self, items: Any) -> None:
        self.items = {7: items}

    @property
    def computed(self) -> list[int]:
        raise AssertionError("the probe called the program's own code")

    def searched(self, look: Callable[[], None]) -> None:
        for _ in range(9):
            found = -1 in self.items[7]
            look()
        assert not found

    def drawn(self, look: Callable[[], None]) -> None:
        n = 5
        while n in self.items[7]:
            n = -1
        look()

    def of_a_call(self, look: Callable[[], None]) -> None:
        found = -1 in list(self.items[7])
        look()
        assert not found

    def of_a_property(self, look: Callable[[], None]) -> None:
        found = look is self and -1 in self.computed
        look()
        assert not found


MANY: Final = list(range(300))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="earlier Pythons look after each operation")
@pytest.mark.parametrize(
    ("items", "function", "is_moved"),
    [
        (MANY, Ratings.searched, True),
        (tuple(MANY), Ratings.searched, True),
        (np.array(MANY), Ratings.searched, True),
        (MANY[:50], Ratings.searched, False),
        (MANY, Ratings.drawn, True),
        (set(MANY), Ratings.drawn, False),
        (set(MANY), Ratings.searched, False),
        (dict.fromkeys(MANY), Ratings.searched, False),
        (MANY, Ratings.of_a_call, False),
        (MANY, Ratings.of_a_property, False),
    ],
)
def test_a_sample_after_the_search_of_a_long_list_is_of_its_line(
    lines: ModuleType, items: Any, function: Any, is_moved: bool
) -> None:
    seen = Counter[int | None]()

    def look() -> None:
        frame = sys._getframe(1)
        seen[lines.worked_on(frame.f_code, frame.f_lasti, get_ident())] += 1

    function(Ratings(items), look)
    line = function.__code__.co_firstlineno + 2
    assert set(seen) == {line if is_moved else None}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="earlier Pythons have no RESUME")
def test_a_function_is_stopped_where_it_begins(lines: ModuleType) -> None:
    dis = pytest.importorskip("dis")
    code = negatives.__code__
    (begin,) = (one.offset for one in dis.get_instructions(code) if one.opname == "RESUME")
    assert lines.has_begun(code, begin)
    assert not lines.has_begun(code, last_jump(code))


def test_a_sample_elsewhere_stays_on_its_line(lines: ModuleType) -> None:
    assert lines.worked_on(update.__code__, 0) is None
