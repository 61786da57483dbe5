"""One sentence that says what to ask for, and the facts that it rests on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcncf_analysis import commands
from hpcncf_analysis.advice import cause, facts, sentences
from hpcncf_analysis.advice.cause import Diagnoses, Named
from hpcncf_analysis.advice.recommend import recommended
from hpcncf_analysis.advice.request import memory
from hpcncf_analysis.diagnosis import Cause
from hpcncf_analysis.summary import Configuration


@dataclass(frozen=True)
class Conclusion:
    sentence: str
    """Where a cause was found, a first sentence with it and what it costs."""
    facts: list[str]
    cause: Cause | None = None
    """That the sentence names."""
    remedy: str = ""
    """As the sentence tells it; empty where it tells none."""


def conclude(
    configurations: Sequence[Configuration],
    counts: Mapping[str, int],
    diagnoses: Diagnoses | None = None,
) -> Conclusion:
    """`counts`: state -> runs."""
    if not configurations:
        return Conclusion(sentences.nothing(counts), [])
    found = diagnoses or {}
    if len(configurations) == 1 and not configurations[0].is_command:
        return _of_one(configurations[0], found)
    if all(one.is_command for one in configurations):
        return _of_commands(configurations, found)
    return _of_comparable(configurations, found)


def _of_commands(configurations: Sequence[Configuration], found: Diagnoses) -> Conclusion:
    """Compared where all are the same command at different sizes."""
    judged = [one for one in configurations if not commands.is_short(one)]
    if len(judged) > 1 and len(commands.by_name(configurations)) == 1:
        return _of_comparable(judged, found)
    sentence, told = commands.sentence(configurations), commands.facts(configurations)
    if len(configurations) == len(judged) == 1:
        first = cause.named(judged, judged[0], found)
        return _after(first, sentence, [*told, *_idle_cores(judged[0], found)])
    return Conclusion(sentence, told)


def _of_comparable(configurations: Sequence[Configuration], found: Diagnoses) -> Conclusion:
    best = recommended(configurations)
    others = [one for one in configurations if one is not best and one.speed]
    if best is None:
        return Conclusion("The completed runs measured no speed: nothing can be compared.", [])
    if not others:
        return _of_one(best, found)
    compared = sentences.comparison(best, others, configurations)
    return _after(
        cause.named(configurations, best, found),
        sentences.ask(compared, configurations),
        [
            *sentences.beside(compared),
            *facts.against_base(best, configurations),
            *facts.cheapest(configurations),
            *facts.side_by_side(configurations),
            *facts.lower_quality(configurations),
            *facts.losses(configurations),
            *memory(best),
            *cause.left(configurations, best, found),
        ],
    )


def _of_one(one: Configuration, found: Diagnoses) -> Conclusion:
    told = [*_idle_cores(one, found), *memory(one)]
    return _after(cause.named([one], one, found), sentences.alone(one), told)


def _idle_cores(one: Configuration, found: Diagnoses) -> list[str]:
    return [] if cause.hides_need(cause.of(one, found)) else facts.idle_cores(one)


def _after(first: Named | None, sentence: str, told: list[str]) -> Conclusion:
    if first is None:
        return Conclusion(sentence, told)
    return Conclusion(f"{first.sentence} {sentence}", told, first.cause, first.remedy)
