"""Read the fields of every job that a text mentions, whoever wrote the text.

A text is cleaned, its tables and JSON are read by column and key, and in all other lines each label
of `fields.LABELS` is looked for with a value after it. What was seen is gathered by job id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from hpcncf.explain import dialects
from hpcncf.explain.drafts import Draft, Drafts
from hpcncf.explain.fields import PBS_LETTERS, JobFields, Label, labels_by_letters, state_word
from hpcncf.explain.json_jobs import rewrite_json
from hpcncf.explain.structured import (
    TextTable,
    column,
    gather,
    read_cell,
    read_json,
    read_tables,
    row_values,
    see_nameless,
)
from hpcncf.explain.units import (
    match_count,
    match_duration,
    match_memory,
    match_share,
    plain_numbers,
)

# A summary is short. More is a log or an attack: its end is what the scheduler wrote.
MOST_CHARACTERS: Final = 4_000_000
MOST_LINES: Final = 60_000
# Lines that have to be searched for labels cost more than rows of tables.
MOST_LABELLED: Final = 10_000
LONGEST_LINE: Final = 4_000
MOST_CELLS: Final = 2_000


def read_text(text: str) -> list[JobFields]:
    """Read all jobs that the text has a figure or a state of, in order of first mention."""
    return read_with_problems(text)[0]


def read_with_problems(text: str) -> tuple[list[JobFields], list[str]]:
    """Read the jobs of a text, and describe summaries that could not be read.

    Each description says what to do about it.
    """
    lines = clean_lines(rewrite_json(_without_escapes(text)))
    problems: list[str] = []
    drafts = Drafts()
    lines = read_json(lines, drafts)
    lines = read_tables(lines, drafts, problems)
    _read_labels(lines, drafts)
    if not any(draft.values for draft in drafts.all):  # a label may be broken over two lines
        _read_labels([" ".join(line.strip() for line in lines)[:LONGEST_LINE]], drafts)
    named = any(draft.id for draft in drafts.all)
    shown = [draft for draft in drafts.in_order() if not (named and draft.is_aside)]
    jobs = [dialects.finish(draft) for draft in shown]
    return _without_heads([job for job in jobs if dialects.says_something(job)]), problems


def _without_heads(jobs: list[JobFields]) -> list[JobFields]:
    """Drop jobs that only head their parts: 771 of `771+0` and `771+1`, without own figures."""
    heads = {re.split(r"[+_]", job.id)[0] for job in jobs if re.search(r"\d[+_]\d", job.id)}
    return [job for job in jobs if job.id not in heads or job.elapsed_s is not None]


class RowReader:
    """Reads jobs from rows of sacct whose columns are known; equal cells are read once."""

    def __init__(self, heads: Sequence[str]) -> None:
        self._table = TextTable(list(heads), [column(head) for head in heads], "|")
        self._cells: dict[tuple[int, str], tuple[str, Any] | None] = {}

    def read(self, rows: Sequence[Sequence[str]]) -> list[JobFields]:
        """Read the rows of a job, its own and its steps'; a het job has several parts."""
        drafts = Drafts()
        heads = self._table.heads
        gather([(0, row_values(self._table, row, self._read), heads) for row in rows], drafts)
        return [dialects.finish(draft) for draft in drafts.in_order()]

    def _read(self, rows: Sequence[Label], cell: str) -> tuple[str, Any] | None:
        if rows[0].field == "id":
            return read_cell(rows, cell)
        key = (id(rows), cell)
        if key not in self._cells:
            if len(self._cells) >= MOST_CELLS:
                self._cells.clear()
            self._cells[key] = read_cell(rows, cell)
        return self._cells[key]


_ENTITIES: Final = {"&nbsp;": " ", "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"'}
_ESCAPES: Final = re.compile(
    r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)|[\u200b\ufeff]"
)
_HTML: Final = re.compile(
    r"</(?:t[dr]|d[td]|p|div|html|li|pre|font|span|b|table|code|strong)>|<br ?/?>", re.IGNORECASE
)
_CELL_END: Final = re.compile(r"</(?:t[dh]|dt)>\s*<(?:t[dh]|dd)(?:\s[^<>]{0,200})?>", re.IGNORECASE)
_LINE_END: Final = re.compile(r"<br ?/?>|</(?:tr|dd|p|div|li|h\d|pre|table)>", re.IGNORECASE)
_TAG: Final = re.compile(
    r"</?(?:html|head|body|table|tbody|thead|tr|t[dh]|d[ltd]|p|br|div|span|b|i|u|em|strong|pre|code|font|a|ul"
    r"|ol|li|h\d|style|hr|img|center|small|tt)(?:\s[^<>]{0,500})?/?>",
    re.IGNORECASE,
)
# What a reply, a comment, a list or a program's log puts before each line.
_PREFIX: Final = re.compile(r"^(?:[ \t]*(?:>|#(?!SBATCH|BSUB|PBS|\$)|\*(?!\*\*)|//|[•·│┃])[ \t]?)+")
# LSF breaks lines anywhere and begins their rest with 21 blanks; PBS with a tab.
_LSF_FOLD: Final = re.compile(r"\n {21}(?=\S)")
# Frames drawn with characters: their lines part cells as `|` and `-` do.
_FRAME: Final = re.compile(r"[\u2500-\u257f]")
_FRAMES: Final = {
    code: "|" if chr(code) in "│┃║┆┇┊┋╎╏" else "-" if chr(code) in "─━═┄┅┈┉╌╍" else "+"
    for code in range(0x2500, 0x2580)
}
_MARKDOWN: Final = re.compile(r"`|(?<!\*)\*\*(?!\*)")
_BLANK_LINES: Final = re.compile(r"\n{3,}")
_PBS_FOLD: Final = re.compile(r"(?<=[^\s:])\n\t(?=\S)")


def _without_escapes(text: str) -> str:
    if "\x1b" in text or "\u200b" in text or "\ufeff" in text:
        return _ESCAPES.sub("", text[-MOST_CHARACTERS:])
    return text


def clean_lines(text: str) -> list[str]:
    """Split a text into lines, without colours, markup and quotation marks.

    Numbers are converted to plain ones.

    A prefix becomes blanks: columns stay under their heads.
    """
    if len(text) > MOST_CHARACTERS:
        text = text[-MOST_CHARACTERS:]
    text = _without_escapes(text)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    if "&" in text:
        for entity, character in _ENTITIES.items():
            text = text.replace(entity, character)
        text = re.sub(r"&#(\d{2,3});", lambda found: chr(int(found[1])), text, count=100_000)
    if _HTML.search(text):
        text = _TAG.sub("", _LINE_END.sub("\n", _CELL_END.sub("  ", text)))
    if _FRAME.search(text):
        text = text.translate(_FRAMES)
    if "`" in text or "**" in text:
        text = _MARKDOWN.sub("", text)
    if "\n" + " " * 21 in text:
        text = _LSF_FOLD.sub("", text)
    tabbed = text.count("\n\t")
    if tabbed and "Resource_List" in text:
        # Where most lines begin with a tab it is a quotation, not PBS's mark of a continued line.
        text = text.replace("\n\t", "\n") if 2 * tabbed > text.count("\n") else text
        text = _PBS_FOLD.sub("", text)
    if "\n\n\n" in text:
        text = _BLANK_LINES.sub("\n\n", text)
    raw_lines = text.split("\n")[-MOST_LINES:]
    lines = []
    for raw in raw_lines:
        line = raw[:LONGEST_LINE].rstrip()
        if prefix := _PREFIX.match(line):
            line = " " * prefix.end() + line[prefix.end() :]
        lines.append(plain_numbers(line))
    return lines


@cache
def _beginnings() -> frozenset[str]:
    """Return every prefix of every label, without spaces."""
    return frozenset(key[:end] for key in labels_by_letters() for end in range(1, len(key) + 1))


_WORD: Final = re.compile(r"[^\W\d_]+")
_GAP: Final = re.compile(r"[ \t_./-]{0,2}(?![ \t])")
# A word that is also ordinary English is a label only before a colon, at a line's begin, or where a
# share follows.
_ORDINARY: Final = frozenset(
    (
        *("cpu", "cpus", "gpu", "gpus", "mem", "memory", "job", "jobs", "id", "nodes", "tasks"),
        *("cores", "slots", "processors", "procs", "ranks", "efficiency", "status", "stat"),
        *("hours", "time", "duration", "real", "runtime", "elapsed", "walltime"),
    )
)
_UNIT: Final = r"\s?\((%|[KMGT]?i?B|kbytes|s|sec|secs|seconds|min|minutes|h|hours)\)"
_AFTER: Final = re.compile(rf"(?:{_UNIT}|\s?\([^()%\d\n]{{0,40}}\)|\s?\[[A-Za-z ]{{1,20}}\])?")
# What an amount of memory is per, between its label and its value.
_PER: Final = re.compile(r"[ _]?(?:per|/)[ _]?(node|core|cpu|task)\b", re.IGNORECASE)
_SEPARATOR: Final = re.compile(r"[ \t]*[.]*[ \t]*[:=|]?[ \t]*[<\"'\[(>]?[ \t]*")
# `the maximum memory usage was 2 GB`: a verb instead of a colon.
_VERB: Final = re.compile(r"[ \t]+(?:is|was|were)[ \t]+(?:only|just|about)?[ \t]*(?=\d)")
_LASTING: Final = frozenset(("walltime", "runtime", "cputime", "elapsedtime", "wallclocktime"))
# What may be between a label and its share: a bar, a verb.
_TOWARDS_SHARE: Final = re.compile(
    r"[\s:=\[|.>~<*_#█▏▎▍▌▋▊▉░▒▓–—-]{0,80}"
    r"(?:(?:for|of) (?:your |the )?job [\w.\[\]-]{1,40}(?: \([^()]{0,40}\))?[\s:=]*)?"
    r"(?:(?:is|was|were|of|only|just|about|approximately"
    r"|around|averages?|averaged|at|has|been|a|mere|to|be|found|currently|job|reported|as)\b"
    r"[\s:=]*){0,5}",
    re.IGNORECASE,
)
# A share in such a sentence is a rule of the site, not a figure of the job.
_RULE: Final = re.compile(
    r"\b(?:targets?|goals?|should|at least|thresholds?|and above|or (?:more|above|higher|better)"
    r"|minimum|less than|below|recommend\w*|ideally|aim|typical\w*|for example|up to|each node"
    r"|if possible|exceeds?|above \d|greater than|fewer than|per gpu)\b",
    re.IGNORECASE,
)
_STEMS: Final = (
    *(
        "cpu",
        "core",
        "mem",
        "time",
        "elapsed",
        "wall",
        "gpu",
        "state",
        "status",
        "exit",
        "node",
        "task",
    ),
    *(
        "job",
        "rss",
        "slot",
        "id",
        "tres",
        "run",
        "limit",
        "signal",
        "proc",
        "hours",
        "eff",
        "vmem",
        "real",
    ),
    *("kill", "usr", "duration", "done", "success", "second", "bsub", "return", "terminat", "load"),
    *(
        "host",
        "parallel",
        "start",
        "date",
        "util",
        "stat",
        "état",
        "rank",
        "sys",
        "h_rt",
        "s_rt",
        "vm",
        "gres",
        "gcd",
        "sm us",
        "coeur",
        "cœur",
        "temp",
        "nod",
        "nós",
        "dura",
        "límite",
        "メモリ",
        "cleo",
        "ejecuci",
        "memoria",
        "memória",
        "estado",
        "durata",
        "ジョブ",
        "コア",
        "時間",
        "ノード",
        "作业",
        "核",
        "时间",
        "内存",
        "节点",
        "kern",
        "knoten",
        "nœud",
        "noeud",
        "auftrag",
        "identifiant",
        "speicher",
        "zeit",
        "ffizien",
        "durée",
        "mémoire",
        "ram",
        "used",
        "resource",
        "request",
        "slurm data",
        "dispatch",
    ),
)
_ID: Final = re.compile(
    r"[<#\"']?(\d{1,12}(?:_\d{1,9}|_\[[^\]]{1,40}\]|\[\d{0,9}\]|\+\d{1,4})?)((?:\.[A-Za-z][\w-]*)*)"
    r"(?![\d/%]|:\d)"
)


_LABEL_END: Final = re.compile(r"[A-Za-z)]:(?: |$)")


def _is_wrapped(line: str) -> bool:
    """Return whether a line has two labels one blank apart, as a mail program wraps them."""
    line = line.strip()
    return "  " not in line and len(_LABEL_END.findall(line)) > 1


def _joined(lines: Sequence[str]) -> Sequence[str]:
    """Join the lines of a paragraph in which labels were wrapped; the others stay as they are."""
    joined = list(lines)
    at = 0
    while at < len(joined):
        end = at
        while end < len(joined) and _is_wrapped(joined[end]):
            end += 1
        begins = [line.partition(":")[0].strip() for line in joined[at:end]]
        if len(begins) > 1 and len(set(begins)) == len(begins):  # else a form on each line
            end += bool(end < len(joined) and joined[end].strip())  # its last line may have one
            joined[at] = " ".join(line.strip() for line in joined[at:end])[:LONGEST_LINE]
            joined[at + 1 : end] = [""] * (end - at - 1)
        at = max(end, at + 1)
    return joined


def _may_tell(line: str) -> bool:
    """Return whether a line may have a label: most lines of a log have none of the stems."""
    lowered = line.lower()
    return len(line) > 3 and (
        lowered.lstrip()[:1] == "<" or any(stem in lowered for stem in _STEMS)
    )


def _read_labels(lines: Sequence[str], drafts: Drafts) -> None:
    table, beginnings = labels_by_letters(), _beginnings()
    lines = _joined(lines)
    before = ""
    telling = {number for number, line in enumerate(lines) if _may_tell(line)}
    if len(telling) > MOST_LABELLED:  # a log: what the scheduler wrote is at its end
        telling = set(sorted(telling)[-MOST_LABELLED:])
    for number, line in enumerate(lines):
        if number in drafts.nameless:
            drafts.line = number
            _see_command(lines[max(number - 6, 0) : number], drafts)
            see_nameless(drafts.nameless[number], drafts)
        if number not in telling or line == before:
            before = line
            continue
        drafts.line = number
        if heading := _SECTION.match(line):  # `Resources requested:`, then `walltime=04:00:00`
            drafts.of_request = bool(_ASKED.search(heading[0]))
            continue
        if node := dialects.TRACE_NODE.match(line):
            draft = drafts.here()
            used = match_duration(node[2])
            draft.values.setdefault("cpu_of_nodes", {})[node[1]] = used[0] if used else 0.0
            continue
        if "Resources Per Task" not in line:  # Moab's checkjob, of each task
            _read_line(line, before, lines[number + 1 : number + 2], drafts, table, beginnings)
        dialects.read_phrases(line, drafts, told_of_job(before, line))
        drafts.here().text.append(line)
        before = line


_SSTAT: Final = re.compile(r"\W*sstat\s(?:.*\s)?(?:-j\s?|--jobs?[= ])(\d{1,12})(?:\.\w+)?(?:\s|$)")


def _see_command(lines: Sequence[str], drafts: Drafts) -> None:
    """Read the job of a table without ids from sstat's command above it: it knows no ended job."""
    for line in lines:
        if found := _SSTAT.match(line):
            draft = drafts.of(found[1])
            draft.see("state", "RUNNING", 0)
            draft.source = draft.source or "sstat"


_SENTENCE_END: Final = re.compile(r"[.!?](?=\s+[A-Z])")


# Before a rule in the same line only these make sure that it is no general remark.
_OF_JOB: Final = re.compile(r"\b(?:your?|job|it)\b", re.IGNORECASE)


def told_of_job(before: str, line: str) -> str:
    """Return the sentences of a line before the first that states what the site wants."""
    begin = 0
    for end in [*(found.end() for found in _SENTENCE_END.finditer(line)), len(line)]:
        if is_rule("" if begin else before, line[begin:end]):
            return line[:begin] if _OF_JOB.search(line[:begin]) else ""
        begin = end
    return line


def is_rule(before: str, line: str) -> bool:
    """Return whether the line states what the site wants, not what the job did."""
    return bool(_RULE.search(f"{before[-80:]} {line}" if before.strip() else line))


# Fujitsu's pjstat, `NODE NUM (REQUIRE) : 2`.
_QUALIFIERS: Final = {"use": "used", "require": "requested", "alloc": "allocated", "limit": "limit"}
_QUALIFIED: Final = re.compile(r" ?\((use|require|alloc|limit)\)(?= *:)", re.IGNORECASE)


def _read_line(
    line: str,
    before: str,
    below: Sequence[str],
    drafts: Drafts,
    table: Mapping[str, list[Label]],
    beginnings: frozenset[str],
) -> None:
    if "(" in line:
        line = _QUALIFIED.sub(lambda found: f" {_QUALIFIERS[found[1].lower()]} ", line)
    words = list(_WORD.finditer(line))
    at = 0
    number = 0
    while number < len(words):
        word = words[number]
        if word.start() < at:
            number += 1
            continue
        found = _longest_label(line, words, number, table, beginnings)
        if not found:
            number += 1
            continue
        key, last = found
        end = _take(line, word.start(), words[last].end(), key, table[key], before, below, drafts)
        at = end
        number = last + 1


def _longest_label(
    line: str,
    words: Sequence[re.Match[str]],
    first: int,
    table: Mapping[str, list[Label]],
    beginnings: frozenset[str],
) -> tuple[str, int] | None:
    """Find the longest label that begins at this word; return its key and its last word."""
    squeezed, best, end = "", None, words[first].start()
    for number in range(first, min(first + 7, len(words))):
        word = words[number]
        if number > first:
            gap = _GAP.match(line, end)
            if not gap or gap.end() != word.start():
                break
        squeezed += word[0].lower()
        if "is" in squeezed:
            squeezed = squeezed.replace("isation", "ization").replace("ised", "ized")
        if squeezed not in beginnings:
            break
        if squeezed in table:
            best = squeezed, number
        end = word.end()
    return best


def _take(
    line: str,
    start: int,
    end: int,
    key: str,
    rows: Sequence[Label],
    before: str,
    below: Sequence[str],
    drafts: Drafts,
) -> int:
    """Read the value behind a label into a draft; return the position behind it.

    If there is no value, it returns the end of the label.
    """
    if key == "job" and line[:start].endswith("a "):
        return end  # `Maximum CPU time of a job: 3100.5`
    if line[max(start - 2, 0) : start] == "--":
        return end  # an option of a script, so a request, and perhaps one of several
    glued = line[end : end + 1].isdigit() or (start and line[start - 1] in "-/$")
    if glued and (line[end : end + 1] not in "=: " or line[start - 1] == "$"):
        return end  # `gpu0`, a path, the name of an option or variable
    of_memory = any(row.kind in ("memory", "used of memory") for row in rows)
    per = _PER.match(line, end) if of_memory else None
    after = _AFTER.match(line, per.end() if per else end)
    assert after  # it matches nothing, too
    unit = (after[1] or "").lower()
    separator = _SEPARATOR.match(line, after.end())
    assert separator
    if (of_memory or key in _LASTING) and start < len(told_of_job(before, line)):
        separator = _VERB.match(line, after.end()) or separator
    at_begin = not line[:start].strip(" \t|-+:\"'")
    gap = separator[0]
    firm = (
        ":" in gap
        or "=" in gap
        or "<" in gap
        or "|" in gap
        or (at_begin and len(gap) > 1)
        or "\t" in gap
    )
    ordinary = key in _ORDINARY
    alone = separator.end() >= len(line)
    for row in rows:
        if row.kind == "share":
            towards = _TOWARDS_SHARE.match(line, after.end())
            assert towards
            value = match_share(line, towards.end())
            if value is None and unit == "%":
                value = match_share(line, separator.end(), bare=True)
            if value is None:
                continue
            prose = bool(re.search(r"[a-z]", towards[0]))
            if prose and start >= len(told_of_job(before, line)):
                continue
            return _see_share(row, key, line, value, start, prose, drafts)
        # A clock or a unit shows that the word is a label.
        strict = ordinary and not firm and row.kind != "bare id"
        if (strict and row.kind not in ("duration", "used of time")) or not (gap or firm):
            continue
        if row.kind == "bare id":
            if key == "id" and not at_begin:
                continue
            if key != "id" and not re.match(r"[ \t:=]*[<#]?\d{3,}", line[end:]) and "<" not in gap:
                continue
        plain = replace(row, unit="") if strict else row
        each = f"/{per[1].lower()}" if per else ""
        ended = _see_value(plain, key, line, separator.end(), unit, start, drafts, each)
        if ended is not None:
            return ended
    if alone and below and at_begin:  # LSF's RUNLIMIT has its value on the next line
        for row in rows:
            if row.kind == "duration" and row.unit == "min":
                value = match_duration(below[0].strip(), 0, 60.0)
                if value:
                    _new_form(drafts, key).see(row.field, value[0], row.weight)
    return end


def _new_form(drafts: Drafts, key: str) -> Draft:
    """Return the current draft, or a new one if a second summary begins.

    That is so if the job has no id, and its first label occurs again.
    """
    draft = drafts.here()
    if not draft.id and draft.first_label == key and len(draft.labels) > 1:
        draft = drafts.fresh()
    draft.first_label = draft.first_label or key
    draft.labels.add(key)
    return draft


_SUBJECTS: Final[Mapping[str, tuple[str, str]]] = {
    "printed_efficiency": ("cpu_s", "core_walltime_s"),
    "printed_memory_efficiency": ("memory_mib", "memory_asked_mib"),
    "printed_time_efficiency": ("elapsed_s", "limit_s"),
}
_OF: Final = re.compile(r"[ \t]*(?:of|/|out of|von|sur|de)[ \t]*")
# `31%   (used 2:04:00 of 6:40:00 CPU-time)`.
_BEFORE_AMOUNT: Final = re.compile(r"[ \t(]*(?:(?:used|peak|max)[ \t]+)?")


def _see_share(
    row: Label,
    key: str,
    line: str,
    value: tuple[float, int],
    start: int,
    prose: bool,
    drafts: Drafts,
) -> int:
    """Read a percentage, and the amounts it was computed from, such as `00:00:29 of 00:03:00`.

    It returns the position behind them.
    """
    name = row.field
    if name == "efficiency_of":  # `(efficiency=10.2%)`: of what stands before it
        name = _subject(line[:start])
        if not name:
            return value[1]
    draft = drafts.aside() if prose else _new_form(drafts, key)
    draft.see(name, value[0], row.weight)
    end = value[1]
    used, whole = _SUBJECTS.get(name, ("", ""))
    if used:
        match: Callable[[str, int], tuple[float, int] | None]
        match = match_memory if "memory" in used else match_duration
        blank = _BEFORE_AMOUNT.match(line, end)
        amount = match(line, blank.end()) if blank else None
        of = _OF.match(line, amount[1] if amount else end)
        total = match(line, of.end()) if of else None
        if total:
            if amount:
                draft.see(used, amount[0], 2)
            draft.see(whole, total[0], 2)
            end = total[1]
    return end


def _subject(before: str) -> str:
    lowered = before.lower()
    if "gpu" in lowered:
        return "gpu_efficiency"
    if "cpu" in lowered or "core" in lowered or "used/runtime" in lowered:
        return "printed_efficiency"
    return "printed_memory_efficiency" if "mem" in lowered else ""


_ASKED: Final = re.compile(
    r"\b(?:request(?:ed)?|resource_list|limits?|asked|reserved|allocated)\b|#PBS|#\$| -l ", re.I
)
_USED: Final = re.compile(r"\b(?:used?|usage|utili[sz]ed|max\w*|peak)\b", re.IGNORECASE)
_REQUIREMENT: Final = re.compile(r"\b(?:rusage|select|order)\[[^\]]*$")
_SECTION: Final = re.compile(
    r"[\W_]*(?:resources?|job)?[ \t]*(?:requested|request|used|usage|limits?|allocated)"
    r"[ \t]*:?[\W_]*$",
    re.IGNORECASE,
)
_UNITS: Final = {"kbytes": "K", "kb": "K", "kib": "K", "mb": "M", "mib": "M", "gb": "G", "gib": "G"}
_SECONDS: Final = {"s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "min": 60.0, "minutes": 60.0}
_BOTH: Final = re.compile(
    r"(\d{1,9}(?:\.\d{1,6})?) ?(?:/|of) ?(\d{1,9}(?:\.\d{1,6})?) ?([KMGT]i?B)\b"
)
_OWN_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}


def _see_value(
    row: Label,
    key: str,
    line: str,
    at: int,
    unit: str,
    start: int,
    drafts: Drafts,
    each: str = "",
) -> int | None:
    """Read a value of the label's kind; return the position behind it, None without a value.

    `each`: what an amount of memory is per, such as `/node`.
    """
    kind, name = row.kind, row.field
    value: tuple[Any, int] | None = None
    if kind in ("id", "bare id"):
        return _see_id(line, at, row, drafts)
    if kind in ("used of time", "used of memory"):
        if _REQUIREMENT.search(line[:start]):
            return None  # of each slot or host, and in units that the site chose
        asked = "cput" not in line and bool(_ASKED.search(line[:start]) or drafts.of_request)
        if kind == "used of time":
            name, kind = ("limit_s" if asked else "elapsed_s"), "duration"
        else:
            held = bool(each) and not _USED.search(line[:at])  # `Memory per node: 64 GB`
            name, kind = ("memory_asked_mib" if asked or held else "memory_mib"), "memory"
        weight = 1
    else:
        weight = row.weight
    if kind == "duration":
        own = _SECONDS.get(unit) or (3600.0 if unit in ("h", "hours") else 0.0)
        units = own or _OWN_UNITS.get(row.unit, 0.0)
        if row.unit == "h m":  # LSF's -W: minutes, or hours and minutes
            units = 3600.0 if ":" in line[at : at + 8] else 60.0
        value = match_duration(line, at, units)
    elif kind == "memory":
        if both := _BOTH.match(line, at):  # `5.1 / 64.0 GiB`: the unit is that of both
            line = f"{line[:at]}{both[1]}{both[3]}/{both[2]}{both[3]}{line[both.end() :]}"
        value = match_memory(line, at, _UNITS.get(unit) or row.unit or None)
    elif kind == "count":
        value = match_count(line, at)
        if value and name == "jobs" and value[0] < 2:
            return None
    elif kind == "number":
        found = re.compile(r"\d{1,9}(?:\.\d{1,6})?").match(line, at)
        value = (float(found[0]), found.end()) if found else None
    elif kind == "state":
        word = state_word(line[at : at + 60])
        letter = re.compile(r"([A-Z])\b").match(line, at)
        if letter and key == "jobstate" and letter[1] in PBS_LETTERS:
            word = PBS_LETTERS[letter[1]]
        value = (word, at + len(word)) if word else None
    elif kind == "exit":
        found = re.compile(r"(?:is |was )?(-?\d{1,5})(?::(\d{1,3}))?").match(line, at)
        if found:
            value = ((int(found[1]), int(found[2] or 0)), found.end())
    elif kind == "bare number":
        found = re.compile(r"(\d{1,12})(?![\w.:%]|\s?[KMGTP]i?B)").match(line, at)
        value = (float(found[1]), found.end()) if found else None
    elif kind == "task":
        _see_task(line, at, drafts)
        return None
    elif kind == "hosts":
        found = re.compile(r"[\w./+*,-]{1,20000}").match(line, at)
        value = (found[0], found.end()) if found else None
    elif kind in ("tres", "select"):
        found = re.compile(
            r"[\w:=.,/+*%()-]{1,2000}" if kind == "tres" else r"[\w:=./+*()-]{1,2000}"
        ).match(line, at)
        if found and ("=" in found[0] or kind == "select"):
            value = (found[0], found.end())
            if kind == "select" and not re.search(r"(?:ncpus|ppn|ngpus)=", found[0]):
                return None
    if value is None:
        return None
    draft = _new_form(drafts, key)
    if name in ("elapsed_s", "memory_mib", "cpu_s") and kind in ("duration", "memory"):
        end = _see_pair(name, line, value, draft, weight)
        if end is not None:
            return end
    if kind == "memory":
        draft.see(f"{name}.per", line[at : value[1]] + each, weight)
    draft.see(name, value[0], weight)
    return value[1]


def _see_task(line: str, at: int, drafts: Drafts) -> None:
    """Tell the tasks of an array apart: qacct prints the job's number, and then the task's."""
    found = re.compile(r"(\d{1,9})\s*$").match(line, at)
    draft = drafts.current
    if found and draft and draft.id:
        drafts.of_task(draft.id.partition(".")[0], found[1])


def _see_pair(
    name: str, line: str, value: tuple[Any, int], draft: Draft, weight: int
) -> int | None:
    """Read a pair of used and total amount, such as `00:02:22/00:10:48` or `1.2 GB of 4 GB`.

    It returns the position behind the pair, None if no total follows.
    """
    whole = {"elapsed_s": "limit_s", "memory_mib": "memory_asked_mib", "cpu_s": "core_walltime_s"}[
        name
    ]
    of = _OF.match(line, value[1])
    match: Callable[[str, int], tuple[float, int] | None]
    match = match_memory if name == "memory_mib" else match_duration
    total = match(line, of.end()) if of else None
    if not total:
        return None
    draft.see(name, value[0], weight)
    draft.see(whole, total[0], weight)
    return total[1]


def _see_id(line: str, at: int, row: Label, drafts: Drafts) -> int | None:
    found = _ID.match(line, at)
    if not found:
        return None
    job_id = found[1] + found[2]
    if row.weight == 2:
        drafts.rename(job_id)
    else:
        draft = drafts.of(job_id)
        draft.labels.add("jobid")
    return found.end()
