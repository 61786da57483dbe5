"""What to ask for next, as a reader decides it: the choices, the reasons, and the request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hpcncf_analysis import words
from hpcncf_analysis.advice import placed
from hpcncf_analysis.advice.advise import Advice
from hpcncf_analysis.advice.files import Written
from hpcncf_analysis.advice.front import Choice, Front
from hpcncf_analysis.page.section import Code, Grid, Part, Points, Words
from hpcncf_analysis.table import Table

CHOICES: Final[dict[Choice, str]] = {
    "knee": "the knee: fast, at a fair price",
    "fastest": "the fastest",
    "cheapest": "the cheapest",
}
TEXTS: Final = frozenset({"configuration", "how sure", "ready to submit"})


def parts(written: Sequence[Written]) -> list[Part]:
    """Empty where nothing can be advised."""
    if not written:
        return []
    first = written[0]
    return [
        Points(first.advice.reasons),
        *([Grid(_choices(written))] if len(written) > 1 else []),
        *_placed(first.advice.choices),
        Words("As a job file, to be submitted with:"),
        Code(f"hpcncf submit {first.job}", "sh"),
        Code(first.advice.job_yaml.strip(), "yaml"),
        Words("The same for a batch script of your own:"),
        Code(first.advice.sbatch.strip(), "sh"),
    ]


def _placed(choices: Front) -> list[Part]:
    table = placed.table(choices)
    return [Grid(table), Words(placed.note(choices), note=True)] if table else []


def _choices(written: Sequence[Written]) -> Table:
    unit = written[0].advice.choices.unit
    columns = ["choice", "configuration", f"s/{unit}", f"core time/{unit}", "how sure"]
    rows = [
        [
            _names(one.advice),
            one.advice.chosen.label,
            words.number(one.advice.chosen.seconds),
            words.core_time(one.advice.chosen.core_h),
            one.advice.sure.sure,
            one.job.name,
        ]
        for one in written
    ]
    return Table([*columns, "ready to submit"], rows, TEXTS)


def _names(advice: Advice) -> str:
    """Of one that is several choices at once all of them."""
    told = [
        name
        for choice, name in CHOICES.items()
        if advice.choices.chosen(choice).key == advice.chosen.key
    ]
    return "; ".join(told)
