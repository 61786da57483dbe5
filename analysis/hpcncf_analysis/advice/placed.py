"""Every configuration's time and cost, and who beats it: the Pareto front as a table. Pure."""

from __future__ import annotations

from typing import Final, get_args

from hpcncf_analysis import words
from hpcncf_analysis.advice.front import Choice, Front, Standing
from hpcncf_analysis.advice.recommend import cpu_models
from hpcncf_analysis.advice.saving import gpu_time
from hpcncf_analysis.table import Table

# More of those that are beaten nobody reads; the front is told whole.
MOST: Final = 20
PLACE: Final = "place"
NOTE: Final = (
    "On the Pareto front whoever is quicker costs more; any other is beaten: one takes no longer "
    "and costs no more."
)


def table(choices: Front) -> Table | None:
    """The quickest first; None where there is nothing to compare."""
    if len(choices.standings) < 2:
        return None
    beaten = {each.key for each in choices.dominated[:MOST]}
    shown = [each for each in choices.standings if not each.beaten_by or each.key in beaten]
    on_gpus = any(each.on_gpus for each in shown)
    unit = choices.unit
    columns = ["configuration", f"s/{unit}", f"core time/{unit}"]
    columns += [f"GPU time/{unit}"] if on_gpus else []
    rows = [[*_figures(each, on_gpus), _place(each, choices)] for each in shown]
    return Table([*columns, PLACE], rows, frozenset({PLACE}))


def note(choices: Front) -> str:
    """What the table means, and what it leaves out."""
    left = [
        (len(choices.dominated) - MOST, "more that are beaten"),
        (len(choices.unsound), "whose quality is worse than chance explains"),
    ]
    told = [f"{number} {which}" for number, which in left if number > 0]
    out = [f"Left out: {', '.join(told)}."] if told else []
    return " ".join([NOTE, *out, *_machines(choices)])


def _machines(choices: Front) -> list[str]:
    models = cpu_models([each.one for each in choices.standings])
    if len(models) < 2:
        return []
    return [
        f"They ran on different CPU models ({'; '.join(models)}): who beats whom may be the "
        "machines' doing."
    ]


def _figures(each: Standing, on_gpus: bool) -> list[str]:
    gpus = [gpu_time(each.gpu_h) if each.on_gpus else words.NONE] if on_gpus else []
    return [each.label, words.number(each.seconds), words.core_time(each.core_h), *gpus]


def _place(each: Standing, choices: Front) -> str:
    named: list[str] = [
        choice for choice in get_args(Choice) if choices.chosen(choice).key == each.key
    ]
    if each.beaten_by:
        return "; ".join([*named, f"beaten by {each.beaten_by}"])
    return "; ".join(named) or "on the front"
