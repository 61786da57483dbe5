"""Which line of a loop is worked on, where only the jump at its end lets go of the lock."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

INJECT = Path(__file__).parents[2] / "hpcncf/probe/inject"


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(INJECT))
    from _hpcncf_probe import observer

    yield observer
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
def test_samples_at_the_jump_are_shared_by_the_lines_of_the_body(observer: ModuleType) -> None:
    code = update.__code__
    seen = Counter(observer._line_worked_on(code, last_jump(code)) for _ in range(1000))
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
def test_a_condition_before_an_append_has_its_share(observer: ModuleType) -> None:
    code = negatives.__code__
    seen = Counter(observer._line_worked_on(code, last_jump(code)) for _ in range(900))
    first = code.co_firstlineno
    assert seen == {first + 4: 600, first + 6: 300}


def test_a_sample_elsewhere_stays_on_its_line(observer: ModuleType) -> None:
    assert observer._line_worked_on(update.__code__, 0) is None
