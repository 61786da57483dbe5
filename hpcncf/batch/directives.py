"""Find a script's directives, and say of each whether its scheduler reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hpcncf.batch.options import Option, Scheduler, Token, parse_qsub, parse_slurm, split_directive

PREFIXES: Final[dict[Scheduler, str]] = {
    "slurm": "#SBATCH",
    "lsf": "#BSUB",
    "pbs": "#PBS",
    "sge": "#$",
}
# A line that was meant as a directive, whatever became of its hash signs, blanks and case.
MEANT: Final = re.compile(r"([ \t]*)(#[#!\s]*?)[ \t]*(SBATCH|BSUB|PBS)(?![\w.])", re.IGNORECASE)
GRID_ENGINE: Final = re.compile(r"#\$(?=[ \t]*-[A-Za-z])")
# The same with a slip: `#S -pe smp 8`, or as a comment: `# $ -pe smp 8`.
GRID_ENGINE_MEANT: Final = re.compile(r"#(?:S|[#\s]+\$)(?=[ \t]+-[A-Za-z]+(?:[ \t]|$))")
# `#SBTACH --mem=8G`: a word in capitals in front of an option.
CAPITALS: Final = re.compile(r"#([A-Z]{3,8})(?=[ \t]+--?[A-Za-z])")
WORDS: Final[dict[str, Scheduler]] = {"SBATCH": "slurm", "BSUB": "lsf", "PBS": "pbs"}
# sbatch and PBS stop at the first command; bsub and Grid Engine's qsub read the whole file.
STOPS_AT_COMMAND: Final = frozenset({"slurm", "pbs"})
DASHES: Final = "‐‑‒–—―−﹘﹣－"
MOST_LINES: Final = 20_000

Ignored = Literal[
    "", "after-command", "commented-out", "spelling", "indented", "dash", "blank", "no-option"
]


@dataclass(frozen=True)
class Directive:
    """A line that a scheduler reads options from, or that was meant as one."""

    line: int
    text: str
    """The whole line, without its end."""
    scheduler: Scheduler
    options: tuple[Option, ...]
    tokens: tuple[Token, ...] = ()
    ignored: Ignored = ""
    """Why the scheduler does not read the line, or not all of it."""
    stray: str = ""
    """The word at which sbatch stops."""
    quote: str = ""
    """A quote that is opened and not closed."""

    @property
    def starts_part(self) -> bool:
        """Whether the options below it are of the next part of a heterogeneous job."""
        return any(each.text in ("hetjob", "packjob", ":") for each in self.tokens)

    @property
    def is_read(self) -> bool:
        return self.ignored in ("", "blank", "dash", "no-option")


def find_directives(text: str) -> tuple[list[Directive], int]:
    """Find all directives of a text; also return the line number of its first command."""
    found: list[Directive] = []
    first_command = 0
    for number, line in enumerate(text.split("\n", MOST_LINES)[:MOST_LINES], 1):
        line = line.removesuffix("\r")
        stripped = line.lstrip()
        if not stripped.startswith("#"):
            # A documentation's `...` stands for other lines.
            if stripped.strip(".…") and not first_command:
                first_command = number
            continue
        if directive := _read_line(line, number, bool(first_command)):
            found.append(directive)
    # Words such as `#S -x` are slips only beside directives of the same scheduler.
    read = {each.scheduler for each in found if each.is_read}
    kept = [each for each in found if each.scheduler in read or not _is_slip(each)]
    return kept, first_command


def _is_slip(directive: Directive) -> bool:
    """Return whether a directive's scheduler is only guessed from its misspelled first word."""
    is_grid = directive.scheduler == "sge" and bool(directive.ignored)
    return is_grid or (directive.ignored == "spelling" and not MEANT.match(directive.text))


def _read_line(line: str, number: int, after_command: bool) -> Directive | None:
    if grid := GRID_ENGINE.match(line):
        tokens, quote = split_directive(line, grid.end(), comments=False)
        options = parse_qsub(tokens, number, "sge")
        return Directive(number, line, "sge", tuple(options), tuple(tokens), quote=quote)
    meant = MEANT.match(line)
    if not meant:
        return None if after_command else _read_slip(line, number)
    blank, hashes, word = meant.groups()
    scheduler = WORDS[word.upper()]
    tokens, quote = split_directive(line, meant.end(), comments=scheduler != "lsf")
    prefix = line[: meant.end()]
    ignored: Ignored = ""
    if prefix != PREFIXES[scheduler]:
        # A sentence about SBATCH, or how to submit the script: `# sbatch --array=0-9 job.sh`.
        if not _has_option(tokens) or (word.islower() and " " in prefix.strip()):
            return None
        is_close = hashes.strip() == "#" and not blank and " " not in prefix
        ignored = "spelling" if is_close else "commented-out"
        if blank and prefix.strip() == PREFIXES[scheduler]:
            ignored = "indented"
    elif after_command and scheduler in STOPS_AT_COMMAND:
        ignored = "after-command"
    stray = ""
    if scheduler == "slurm":
        options, read = parse_slurm(tokens, number)
        if read < len(tokens) and tokens[read].text not in ("hetjob", "packjob"):
            stray = tokens[read].text
            if not ignored:
                ignored = "dash" if _is_dash(stray) else "blank" if options else "no-option"
    else:
        options = parse_qsub(tokens, number, scheduler)
        stray = next((each.text for each in tokens if _is_dash(each.text)), "")
        if stray and not ignored:
            ignored = "dash"
    return Directive(number, line, scheduler, tuple(options), tuple(tokens), ignored, stray, quote)


def _read_slip(line: str, number: int) -> Directive | None:
    """Read a line whose first word is close to that of a directive, such as `#SBTACH -c 4`."""
    if grid := GRID_ENGINE_MEANT.match(line):
        ignored: Ignored = "spelling" if grid[0] == "#S" else "commented-out"
        tokens, quote = split_directive(line, grid.end(), comments=False)
        options = parse_qsub(tokens, number, "sge")
        return Directive(number, line, "sge", tuple(options), tuple(tokens), ignored, quote=quote)
    capitals = CAPITALS.match(line)
    word = next((each for each in WORDS if capitals and _is_close(capitals[1], each)), None)
    if capitals is None or word is None:
        return None
    scheduler = WORDS[word]
    tokens, quote = split_directive(line, capitals.end(), comments=scheduler != "lsf")
    if scheduler == "slurm":
        options, _ = parse_slurm(tokens, number)
    else:
        options = parse_qsub(tokens, number, scheduler)
    return Directive(
        number, line, scheduler, tuple(options), tuple(tokens), "spelling", quote=quote
    )


def _is_close(word: str, right: str) -> bool:
    """Return whether a word is another one with a letter missing, added, changed or swapped."""
    if word == right or abs(len(word) - len(right)) > 1:
        return False
    if len(word) == len(right):
        differ = [at for at, letter in enumerate(word) if letter != right[at]]
        return len(differ) == 1 or (len(differ) == 2 and sorted(word) == sorted(right))
    longer, shorter = (word, right) if len(word) > len(right) else (right, word)
    return any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))


def _has_option(tokens: Sequence[Token]) -> bool:
    return any(each.text.startswith("-") or _is_dash(each.text) for each in tokens[:1])


def _is_dash(word: str) -> bool:
    """Return whether a word begins with a character that only resembles `-`.

    A hard blank counts as well.
    """
    return bool(word) and (word.lstrip("\xa0-")[:1] in tuple(DASHES) or word[0] in "\xa0" + DASHES)


def main_scheduler(directives: Sequence[Directive]) -> Scheduler | None:
    """Return the scheduler that most directives belong to; None without directives.

    sbatch reads directives of PBS and LSF, too.
    """
    counts = {
        name: sum(each.scheduler == name for each in directives)
        for name in ("slurm", "lsf", "pbs", "sge")
    }
    best = max(counts, key=lambda name: (counts[name], name == "slurm"))
    return best if counts[best] else None  # type: ignore[return-value]
