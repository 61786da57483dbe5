"""What the page says of scaling, ranks and time to quality, and what it leaves out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pytest
from test_configurations import row
from test_pop import rank
from test_scaling import epochs, generated, ranked

from hpcncf.cli import report as verb
from hpcncf.collect.collect import Collected
from hpcncf_analysis.advice.text import Conclusion
from hpcncf_analysis.configurations import group_configurations
from hpcncf_analysis.report.build import terminal_sentences
from hpcncf_analysis.report.section import Paragraph, Part, ReportData, TableBlock
from hpcncf_analysis.report.sections.model_quality import time_to_quality_parts
from hpcncf_analysis.report.sections.ranks import pop_parts
from hpcncf_analysis.report.sections.speed import scaling_parts


def material(runs: Sequence[Any], quality: float | None = None, **tables: Any) -> ReportData:
    parts = {"attempts": [], "ranks": [], "cores": [], "epochs": []} | tables
    found = Collected("job", list(runs), skipped=[], unaccounted=[], **parts)
    shown = group_configurations(runs)
    return ReportData(found, shown, Conclusion(""), [], quality=quality)


def titles(parts: Sequence[Part]) -> list[str]:
    return [part.title for part in parts if isinstance(part, TableBlock)]


def texts(parts: Sequence[Part]) -> str:
    return " ".join(part.text for part in parts if isinstance(part, Paragraph))


def test_four_sizes_have_laws_and_a_sentence_of_the_fastest() -> None:
    shown = material(generated(0.1, 0.01))
    parts = scaling_parts(shown)
    assert titles(parts) == [
        "Strong: the same work on more cores",
        "Laws of the speed, fitted",
        "What an epoch costs",
    ]
    assert "fastest at 9.49" in texts(parts)
    assert "fastest at 9.49" in terminal_sentences(shown)[0]


def test_two_sizes_say_why_no_law_is_fitted() -> None:
    parts = scaling_parts(material([row(), ranked(2, 150.0)]))
    assert titles(parts) == ["Strong: the same work on more cores", "What an epoch costs"]
    assert "one needs 4 sizes or more" in texts(parts)


def test_one_size_has_its_cost_alone() -> None:
    parts = scaling_parts(material([row()]))
    assert titles(parts) == ["What an epoch costs"]
    assert texts(parts) == ""


def test_nothing_collected_says_nothing() -> None:
    nothing = material([])
    assert scaling_parts(nothing) == []
    assert pop_parts(nothing) == []
    assert terminal_sentences(nothing) == []


def test_ranks_efficiencies_come_with_their_definition() -> None:
    ranks = [rank(0, 5.0), rank(1, 1.0)]
    parts = pop_parts(material([row(), ranked(2, 150.0, run_id="two")], ranks=ranks))
    assert titles(parts) == ["Where the ranks' efficiency goes"]
    assert "load balance × communication × input" in texts(parts)


def asked(*words: str) -> float | None:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    quality: float | None = parser.parse_args(["results", *words]).quality
    return quality


def test_a_quality_to_reach_is_a_share() -> None:
    assert asked() is None
    assert asked("--quality", "0.85") == 0.85


@pytest.mark.parametrize("text", ["85", "0", "-0.1", "nan", "much"])
def test_a_quality_that_none_can_reach_is_refused(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        asked(f"--quality={text}")
    assert f"expected an HR@10 above 0, up to 1, came {text}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "hr10", "title", "said"),
    [
        (None, 0.9, [], ""),
        (0.85, 0.9, ["Time until HR@10 reaches 0.85"], "gets there first, after 10.5"),
        (0.95, 0.9, ["Time until HR@10 reaches 0.95"], "0 of 1 run reached it"),
        (0.85, None, [], "No run evaluated HR@10"),
    ],
)
def test_time_to_quality_is_reported_where_a_target_was_given(
    target: float | None, hr10: float | None, title: list[str], said: str
) -> None:
    shown = material([row(run_id="a")], target, epochs=epochs("a", hr10))
    parts = time_to_quality_parts(shown)
    assert titles(parts) == title
    assert said in texts(parts)
    assert bool(terminal_sentences(shown)) is (target is not None)
