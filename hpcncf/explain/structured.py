"""Tables and JSON: columns in any order, with a header or below the command that printed them."""

from __future__ import annotations

import base64
import binascii
import csv
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from hpcncf.explain.drafts import Draft, Drafts
from hpcncf.explain.fields import (
    COLUMNS,
    ONE_TASK,
    PBS_LETTERS,
    Label,
    labels_by_letters,
    letters,
    state_word,
)
from hpcncf.explain.units import (
    duration,
    match_count,
    match_duration,
    match_memory,
    match_share,
)

# Weight of a cell: a column's head is an unambiguous label.
CELL: Final = 3
MOST_TABLES: Final = 200
# Lines in a row that are no rows of the table above them.
MOST_STRANGE: Final = 20
MOST_JSON: Final = 4_000_000

# JSON: `jobstats -j`, and its copy in Slurm's AdminComment, "JS1:" + base64(gzip(json)).
_JS1: Final = re.compile(r"JS1:([A-Za-z0-9+/=\s]{20,200000})")


def read_json(lines: list[str], drafts: Drafts) -> list[str]:
    """Read jobs from JSON of jobstats; return the lines without that JSON."""
    text = "\n".join(lines)
    if '"total_time"' not in text:
        return lines
    decoder = json.JSONDecoder()
    at = 0
    while (at := text.find("{", at)) >= 0 and at < MOST_JSON:
        if '"total_time"' not in text[at:]:
            break
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, dict) and isinstance(value.get("nodes"), dict):
            head = re.search(r"jobstats\s+(?:-\S+\s+)*(\d{1,12}(?:_\d+)?)", text[:at])
            draft = drafts.of(head[1]) if head else drafts.fresh()
            see_summary(value, draft)
            draft.source = "jobstats"
        text = text[:at] + "\n" * text[at:end].count("\n") + text[end:]
    return text.split("\n")


def unpack(comment: str) -> dict[str, Any] | None:
    """Decode the jobstats summary in Slurm's AdminComment field; None if it has none."""
    found = _JS1.search(comment)
    if not found:
        return None
    try:
        packed = base64.b64decode(re.sub(r"\s", "", found[1]), validate=False)
        plain = zlib.decompressobj(31).decompress(packed, MOST_JSON)
        value = json.loads(plain)
    except (ValueError, binascii.Error, zlib.error, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("nodes"), dict) else None


def _figure(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if good else None  # type: ignore[arg-type]


def see_summary(summary: Mapping[str, Any], draft: Draft) -> None:
    nodes = [node for node in summary["nodes"].values() if isinstance(node, dict)]
    elapsed = _figure(summary.get("total_time"))
    used = [_figure(node.get("total_time")) for node in nodes]
    cores = [_figure(node.get("cpus")) for node in nodes]
    if not nodes or elapsed is None:
        return
    draft.see("elapsed_s", elapsed, CELL)
    draft.see("nodes", float(len(nodes)), CELL)
    if all(each is not None for each in cores):
        draft.see("cores", sum(each or 0 for each in cores), CELL + 1)
    if all(each is not None for each in used):
        draft.see("cpu_s", sum(each or 0 for each in used), CELL + 1)
        # A batch shell leaves seconds: under half a thousandth of the node is nothing.
        least = [0.0005 * elapsed * (each or 1) for each in cores]
        idle = sum((each or 0) < few for each, few in zip(used, least, strict=True))
        draft.see("nodes_unused", float(idle), CELL)
    for name, key in (("memory_mib", "used_memory"), ("memory_asked_mib", "total_memory")):
        amounts = [_figure(node.get(key)) for node in nodes]
        if all(each is not None for each in amounts):
            draft.see(name, sum(each or 0 for each in amounts) / 2**20, CELL + 1)
    gpus = _figure(summary.get("gpus"))
    shares = [_figure(each) for node in nodes for each in _values(node, "gpu_utilization")]
    known = [each for each in shares if each is not None]
    if gpus:
        draft.see("gpus", gpus, CELL)
    if gpus and known:
        draft.see("gpu_efficiency", sum(known) / len(known) / 100, CELL)
        draft.see("gpus_unused", float(sum(not each for each in known)), CELL)
    totals = [_figure(each) for node in nodes for each in _values(node, "gpu_total_memory")]
    filled = [_figure(each) for node in nodes for each in _values(node, "gpu_used_memory")]
    if gpus and totals and all(totals) and None not in filled:
        share = sum(each or 0 for each in filled) / sum(each or 0 for each in totals)
        draft.see("gpu_memory_efficiency", share, CELL)


def _values(node: Mapping[str, Any], key: str) -> list[object]:
    values = node.get(key)
    return list(values.values()) if isinstance(values, dict) else []


# Tables.


@dataclass
class TextTable:
    """Header of a table, and the way in which its rows are cut."""

    heads: list[str]
    columns: list[list[Label]]
    cut: str
    """`|`, `;`, `,`, tab, or blank."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Of the heads, or of the dashes below them; empty if cells are apart by a character."""
    dashed: bool = False
    wide: bool = False
    """Whether at least two blanks are between its heads, so that cells may contain one."""


@cache
def _column_index() -> dict[str, list[Label]]:
    """Map each label and column head, without spaces, to its meanings.

    A meaning that is defined for columns replaces one for lines.
    """
    return labels_by_letters() | {words.replace(" ", ""): rows for words, rows in COLUMNS.items()}


def column(head: str) -> list[Label]:
    """Return the meanings that a column's head may have; empty for unknown heads."""
    if head.lower() in ("cputime", "cputimeraw"):  # sacct: cores x elapsed, not what was used
        return [Label("core_walltime_s", "duration", "s")]
    key = letters(re.sub(r"\((?:MB|GB|KB|s|h|min|%)\)|%\S*$", "", head))
    found = [each for each in _column_index().get(key, []) if each.kind != "hosts"]
    unit = re.search(r"\((MB|GB|KB|s|h|min|%)\)|_(MB|GB|sec|s)$|[A-Za-z] (%)$", head)
    if unit and found:
        word = (unit[1] or unit[2] or unit[3]).replace("sec", "s")
        return [Label(each.field, each.kind, word, each.weight) for each in found]
    if not found and unit and unit[2]:
        key = letters(head[: unit.start()])
        word = unit[2].replace("sec", "s")
        found = [Label(x.field, x.kind, word, x.weight - 1) for x in _column_index().get(key, [])]
    return found


_DASHES: Final = re.compile(r"[\s|+]*[-=]{2,}[-=+|\s:]*$")
_TELLING: Final = frozenset(
    (
        *(
            "printed_efficiency",
            "elapsed_s",
            "cpu_s",
            "state",
            "memory_mib",
            "gpu_efficiency",
            "tres_used",
        ),
        *("printed_memory_efficiency", "nodes_unused", "gpus_unused", "efficiency_of", "ave_cpu_s"),
        *("cores", "gpus", "memory_asked_mib", "limit_s", "percent_used"),
    )
)


# bhist's and bacct's "Summary of time in seconds spent in various states".
_LSF_STATES: Final = frozenset(("PEND", "PSUSP", "RUN", "USUSP", "SSUSP"))


# CSC's seff has a table of its GPUs below "GPU load", one card a row.
_CARDS: Final = re.compile(r"\s*(?:Hostname\s+)?GPU Id\s+Mean \(%\)\s")


# Columns of sacct and sstat that no other table has.
_OF_STEPS: Final = frozenset(("AveCPU", "MaxRSS", "TotalCPU", "Elapsed", "State", "AllocCPUS"))


def _table_at(lines: Sequence[str], number: int) -> TextTable | None:
    """Return the table whose header is this line; None if the line is no header."""
    line = lines[number].replace("^|^", "|")
    if _CARDS.match(line):
        heads = re.split(r"\s{2,}", line.strip())
        share = [Label("card_share", "share", "%")]
        cards = [share if head == "Mean (%)" else [] for head in heads]
        return TextTable(heads, cards, " ", [found.span() for found in re.finditer(r"\S+", line)])
    if ":" in line.replace("::", "") or "=" in line or len(line) > 2000 or len(line) < 8:
        return None
    if line.count("|") >= 2 or (line.count("|") == 1 and "||" not in line):
        heads, cut = _split(line, "|"), "|"
    elif line.count(";") >= 2:
        heads, cut = _split(line, ";"), ";"
    elif "\t" in line.strip():
        heads, cut = [each.strip() for each in line.strip("\n").split("\t")], "\t"
    elif line.count(",") >= 2 and " " not in line.split(",")[0].strip():
        heads, cut = _split(line, ","), ","
    else:
        heads, cut = line.split(), " "
        below = lines[number + 1] if number + 1 < len(lines) else ""
        spans = [found.span() for found in re.finditer(r"-+", below)]
        if _DASHES.match(below) and 1 < len(spans) < len(heads):
            spans[-1] = (spans[-1][0], len(line))
            heads = [line[start:end].strip() for start, end in spans]
        elif len(spans) != len(heads) or not _DASHES.match(below):
            heads = _wide_heads(line, heads)
    if {"NDS", "TSK"} <= set(heads):
        return _of_qstat(heads, lines, number)
    if len(heads) < 2 or sum(bool(re.search(r"\d{2}|^\d", head)) for head in heads) > 1:
        return None
    columns = [column(head) for head in heads]
    known = [each for each in columns if each]
    fields = {each.field for rows in columns for each in rows}
    has_id = "id" in fields
    telling = len(fields & _TELLING)
    of_steps = cut == " " and set(heads) < _OF_STEPS and telling == len(heads)
    sparse = len(known) * 2.5 < len(heads) and not (has_id and telling >= 3)
    lacks = len(known) < 2 or not telling or sparse
    if lacks and not set(heads) >= _LSF_STATES:
        return None
    if set(heads) >= _LSF_STATES:
        run = [Label("elapsed_s", "duration", "s")]
        columns = [run if head == "RUN" else column(head) for head in heads]
    elif not has_id and (telling < 2 or len(known) < 3) and not of_steps:
        return None
    table = TextTable(heads, columns, cut)
    if cut == " ":
        below = next((each for each in lines[number + 1 : number + 3] if each.strip()), "")
        groups = [found.span() for found in re.finditer(r"-+", below)]
        if _DASHES.match(below) and len(groups) == len(heads):
            table.spans, table.dashed = groups, True
        else:
            head = r"\S+(?: \S+)*" if any(" " in each for each in heads) else r"\S+"
            table.spans = [found.span() for found in re.finditer(head, line)]
        table.wide = len(re.split(r"\s{2,}", line.strip())) == len(heads)
    return table


# `qstat -a` has a second line of heads above, so that "Time" is the limit, then the run time.
_QSTAT: Final[Mapping[str, Label]] = {
    "Job ID": Label("id", "id"),
    "NDS": Label("nodes", "count"),
    "TSK": Label("cores", "count"),
    "Memory": Label("memory_asked_mib", "memory", "B"),
    "S": Label("state", "pbs state"),
}


def _of_qstat(heads: list[str], lines: Sequence[str], number: int) -> TextTable | None:
    columns = [[_QSTAT[head]] if head in _QSTAT else [] for head in heads]
    times = [at for at, head in enumerate(heads) if head == "Time"]
    below = lines[number + 1] if number + 1 < len(lines) else ""
    spans = [found.span() for found in re.finditer(r"-+", below)]
    if len(times) != 2 or len(spans) != len(heads):
        return None
    columns[times[0]] = [Label("limit_s", "duration", "h")]
    columns[times[1]] = [Label("elapsed_s", "duration", "h")]
    return TextTable(heads, columns, " ", spans, dashed=True)


def _wide_heads(line: str, heads: list[str]) -> list[str]:
    """Split a header at two or more blanks instead of each, if more heads are then known ones.

    For example `Job ID   Wall time   CPU efficiency`.
    """
    wide = re.split(r"\s{2,}", line.strip())
    if not 2 < len(wide) < len(heads):
        return heads
    known = [sum(bool(column(head)) for head in each) for each in (wide, heads)]
    return wide if known[0] * len(heads) > known[1] * len(wide) and known[0] > 2 else heads


def _split(line: str, cut: str) -> list[str]:
    if cut == ",":
        try:
            return [cell.strip() for cell in next(csv.reader([line]))]
        except (csv.Error, StopIteration):
            return []
    line = line.strip()
    if line.startswith(cut) and line.endswith(cut):
        line = line[1:]
    # `--parsable` ends each line with its delimiter.
    return [cell.strip() for cell in line.removesuffix(cut).split(cut)]


_GLUE: Final = re.compile(
    r"(?<=\d) (?=(?:[KMGTP]i?B|[KMGT]?bytes|min|minutes?|h|hours?|s|sec|seconds?|days?)\b)"
)
_BY: Final = re.compile(r"\bCANCELLED by \d+|\bCANCELLED BY \w+")


def _cells(table: TextTable, line: str) -> list[str] | None:
    """Split a row into cells, one for each column; None if the line is no row of the table."""
    if table.cut != " ":
        line = line.replace("^|^", "|")
        cells = (
            [each.strip() for each in line.split("\t")]
            if table.cut == "\t"
            else _split(line, table.cut)
        )
        if table.cut in "|;" and len(cells) == len(table.heads) - 1:
            cells.append("")  # its last cell is empty, and was taken for the delimiter
        return cells if len(cells) == len(table.heads) else None
    # A name that was replaced by a shorter one moves what is behind it.
    edges = [start - 1 for start, _ in table.spans[1:]] + [end for _, end in table.spans[:-1]]
    moved = any(not line[at].isspace() for at in edges if at < len(line))
    if table.dashed and not moved:
        spans = [*table.spans[:-1], (table.spans[-1][0], len(line))]
        return [line[start:end].strip() for start, end in spans]
    line = _BY.sub(lambda found: "CANCELLED".rjust(len(found[0])), line)
    apart = re.split(r"\s{2,}", line.strip())
    if table.wide and len(apart) == len(table.heads):
        return apart
    line = _GLUE.sub("", line) if line.split() and len(line.split()) > len(table.heads) else line
    words = list(re.finditer(r"\S+", line))
    if len(words) == len(table.heads):
        return [word[0] for word in words]
    if len(words) > len(table.heads):  # the last cell may be a date
        last = len(table.heads) - 1
        return [*(word[0] for word in words[:last]), line[words[last].start() :].strip()]
    if not words:
        return None
    cells = [""] * len(table.heads)
    for word in words:  # a cell is empty: each word belongs to the head it is under
        middle = (word.start() + word.end()) / 2
        nearest = min(
            range(len(cells)),
            key=lambda each: abs(sum(table.spans[each]) / 2 - middle),
        )
        if cells[nearest]:
            return None
        cells[nearest] = word[0]
    return cells


# Orders of columns that are printed without a header: by seff's own comment, and by
# `reportseff --debug`, which sorts them by name.
_KNOWN_ORDERS: Final = (
    "JobID,User,Group,State,Cluster,AllocCPUS,REQMEM,TotalCPU,Elapsed,MaxRSS,ExitCode,NNodes,NTasks",
    "JobID,User,State,Cluster,AllocCPUS,REQMEM,TotalCPU,Elapsed,MaxRSS,NNodes,NTasks",
    "AdminComment,AllocCPUS,Elapsed,JobID,JobIDRaw,MaxRSS,NNodes,REQMEM,State,Timelimit,TotalCPU",
    "AllocCPUS,Elapsed,JobID,JobIDRaw,MaxRSS,NNodes,REQMEM,State,Timelimit,TotalCPU",
    "JobID,JobName,Comment,Elapsed,TotalCPU,NNodes,NCPUS,MaxRSS,ReqMem",
)
_FORMAT: Final = re.compile(r"\bsacct\b[^\n]*?(?:--format(?:=|\s+)|-o\s*)[\"']?([A-Za-z][\w,%\-]+)")
_BARE_ROW: Final = re.compile(r"^\s*(?:[^|]*\|){2,}")
NO_HEADER: Final = (
    "rows of sacct without their header: print them once more without --noheader (-n), or paste "
    "the command line with its --format above them"
)


def read_tables(lines: list[str], drafts: Drafts, problems: list[str]) -> list[str]:
    """Read jobs from all tables; return the lines with those of tables made empty."""
    left = list(lines)
    table: TextTable | None = None
    order: list[str] = []
    blanks = tables = begun = 0
    rows: list[tuple[int, dict[str, Any], list[str]]] = []
    strange = headless = 0
    for number, line in enumerate(lines):
        if found := _FORMAT.search(line):
            order = [re.sub(r"%.*", "", each) for each in found[1].split(",") if each]
            table = None
            continue
        if not line.strip():
            blanks += 1
            first = bool(table) and number == begun + 1
            if blanks > (1 if (table and table.dashed) or first else 0):
                table = None
            continue
        header = _table_at(lines, number) if tables < MOST_TABLES else None
        if header:
            table, blanks, tables, begun = header, 0, tables + 1, number
            left[number] = ""
            continue
        if _DASHES.match(line):
            if table:
                left[number] = ""
                table = None if _CARDS.match(lines[begun]) else table
            continue
        if table and table.cut == " " and not table.dashed and line.count("|") > 2:
            table = None
        if table is None and headless < MOST_STRANGE and "|" in line and _BARE_ROW.match(line):
            table = _headless(line, order)
            headless += table is None
            is_job = re.match(r"\s*\d+(?:_\d+)?(?:\.\w+)?\|", line)
            if table is None and is_job and NO_HEADER not in problems:
                problems.append(NO_HEADER)
        if table is None:
            continue
        cells = _cells(table, line)
        if cells is None or not _is_row(table, cells):
            strange += 1
            if strange > MOST_STRANGE or tables >= MOST_TABLES:
                table = None
            continue
        blanks = strange = 0
        left[number] = ""
        rows.append((number, row_values(table, cells, read_cell), table.heads))
    gather(rows, drafts)
    return left


def _headless(line: str, order: Sequence[str]) -> TextTable | None:
    """Find the columns of a row without a header: those of a command above, or a known order.

    It returns None if none fits.
    """
    cells = _split(line.replace("^|^", "|"), "|")
    candidates = [list(order)] if order else []
    candidates += [each.split(",") for each in _KNOWN_ORDERS]
    for heads in candidates:
        if len(cells) not in (len(heads), len(heads) - 1):
            continue
        table = TextTable(list(heads), [column(head) for head in heads], "|")
        cut = _cells(table, line)
        if cut and _fits(table, cut):
            return table
    return None


def _fits(table: TextTable, cells: Sequence[str]) -> bool:
    """Return whether each cell of a row can be a value of its column."""
    read = [(rows, cell) for rows, cell in zip(table.columns, cells, strict=True) if rows and cell]
    return len(read) >= 3 and all(read_cell(rows, cell) for rows, cell in read)


def _is_row(table: TextTable, cells: Sequence[str]) -> bool:
    values = [
        (rows[0].field, read_cell(rows, cell) is not None)
        for rows, cell in zip(table.columns, cells, strict=True)
        if rows and cell
    ]
    right = sum(fits for _, fits in values)
    known = sum(bool(rows) for rows in table.columns)
    if ("id", True) in values:
        return right >= min(2, len(values))
    return right >= min(2, known) and right * 2 > len(values)


ReadCell = Callable[[Sequence[Label], str], tuple[str, Any] | None]


def row_values(table: TextTable, cells: Sequence[str], read: ReadCell) -> dict[str, Any]:
    """Read a row's cells into a dictionary, field -> value.

    `raw` fields keep the unit of their suffix.
    """
    values: dict[str, Any] = {}
    weights: dict[str, int] = {}
    for rows, cell, head in zip(table.columns, cells, table.heads, strict=True):
        if rows and rows[0].field == "id":
            values.setdefault("cell", cell)
        if head.lower() == "admincomment" and (summary := unpack(cell)):
            values["summary"] = summary
        found = read(rows, cell) if rows and cell else None
        if found:
            name, value = found
            weight = max(row.weight for row in rows)
            if name not in values or weight > weights[name]:
                values[name], weights[name] = value, weight
            if name == "memory_asked_mib":
                values["asked_per"] = cell
    heads = {head.lower() for head in table.heads}
    if "percent_used" in values:  # job_defense_shield: of the time, or of the memory
        time = "elapsed_s" in values and "limit_s" in values
        values["printed_time_efficiency" if time else "printed_memory_efficiency"] = values.pop(
            "percent_used"
        )
    if (nodes := values.pop("nodes_or_name", None)) and nodes <= values.get("cores", 0):
        values["nodes"] = nodes  # a number below "Node" may be a node's name
    if {"realtime", "%cpu"} <= heads:  # Nextflow's trace: 284 % are 2.84 busy cores
        busy = values.pop("printed_efficiency", None)
        if busy is not None and "elapsed_s" in values:
            values["cpu_s"] = busy * values["elapsed_s"]
    if "efficiency_of" in values:
        gpu = any("gpu" in head for head in heads)
        values["gpu_efficiency" if gpu else "printed_efficiency"] = values.pop("efficiency_of")
    if "gpu_efficiency" in values and {"gpus-unused", "gpu-unused-util"} <= heads:
        values.pop("gpu_efficiency")
    if "elapsed_s" in values and {"hours", "zero-util-gpu-hours"} <= heads:
        values.pop("elapsed_s")
    return values


def read_cell(rows: Sequence[Label], cell: str) -> tuple[str, Any] | None:
    """Read a cell: return the field that it fills and the value, None if it is unreadable."""
    cell = cell.strip()
    for row in rows:
        value: Any = None
        if row.kind in ("id", "bare id"):
            plain_id = cell.rstrip("+").rstrip(".")
            found = re.search(
                r"\d{1,12}(?:_\d+|_\[[^\]]*\]|\[\d*\]|\+\d+)?(?:\.[\w-]+)*$", plain_id
            )
            if found and re.fullmatch(r"(?:[\w.-]*[_-])?", cell[: found.start()]):
                value = found[0]
        elif row.kind == "share":
            found_share = match_share(cell) or match_share(cell, 0, bare=row.unit == "%")
            whole = found_share is not None and ("%" in cell or found_share[1] == len(cell))
            value = found_share[0] if found_share and whole else None
        elif row.kind == "duration":
            unit = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}.get(row.unit, 0.0)
            if cell.endswith(":+"):  # sacct and sstat have cut its seconds off
                cell = f"{cell[:-1]}00"
            found_time = match_duration(cell, 0, unit)
            value = found_time[0] if found_time and found_time[1] >= len(cell.rstrip("+")) else None
        elif row.kind in ("memory", "used of memory"):
            unit_name = row.unit[:1] if row.unit[:1] in "KMGB" else None
            found_memory = match_memory(cell, 0, unit_name or None)
            value = found_memory[0] if found_memory else None
        elif row.kind == "count":
            found_count = match_count(cell)
            if not found_count and (plain := re.fullmatch(r"(\d{1,7})\.\d+", cell)):
                value = float(cell) if plain else None
            else:
                value = found_count[0] if found_count else None
        elif row.kind == "state":
            value = state_word(cell) or None
        elif row.kind == "pbs state":
            value = PBS_LETTERS.get(cell)
        elif row.kind == "exit":
            found = re.match(r"(-?\d{1,5})(?::(\d{1,3}))?", cell)
            value = (int(found[1]), int(found[2] or 0)) if found else None
        elif row.kind == "used of time":
            found_time = match_duration(cell, 0, 1.0)
            return ("elapsed_s", found_time[0]) if found_time else None
        elif row.kind in ("tres", "select"):
            cards = re.match(r"gpu:(?:[\w.-]+:)?(\d{1,4})\b", cell)  # AllocGRES before 21.08
            value = f"gres/gpu={cards[1]}" if cards else cell if "=" in cell else None
        if value is not None:
            name = row.field
            return ("memory_mib" if row.kind == "used of memory" else name), value
    return None


# A row's values by field, and the heads of its table.
Row = tuple[dict[str, Any], list[str]]

# Rows of one job: its own, its steps', and those of earlier attempts.

ONLY_ENDED: Final = (
    "sacct counts the CPU time and memory of a running job's ended steps only; they are left out"
)
SAMPLED: Final = "CPU time and memory are as of the last sample of its running steps"
NO_STEPS: Final = "sacct -X (--allocations) leaves the steps out, and with them CPU time and memory"
RESERVED: Final = "CPUTime is cores x elapsed: what was reserved, not what was used"
MEAN: Final = "CPU time is the steps' AveCPU x NTasks: there is no TotalCPU"
TOGETHER: Final = (
    "steps ran side by side: memory is the sum of their peaks, which is an upper bound"
)
LARGEST_TASK: Final = (
    "MaxRSS is that of the largest task, and without NTasks it is not known how many there were: "
    "the job's memory was at least that"
)
TASKS: Final = "memory is the largest task's times the number of tasks: an upper bound"


def gather(rows: Sequence[tuple[int, dict[str, Any], list[str]]], drafts: Drafts) -> None:
    """Group table rows into jobs, and read each job's rows into its draft.

    Rows `123`, `123.batch` and `123.0` belong to one job, `123_1` to another.
    """
    grouped: dict[str, list[Row]] = {}
    first: dict[str, int] = {}
    last = ""
    for number, values, heads in rows:
        job_id = str(values.get("id", ""))
        base, step = _step(job_id)
        if str(values.get("cell", "")).endswith(".+"):  # sacct has cut the step's name off
            step = "cut"
        if "CPUEff" in heads and last and "state" not in values:  # reportseff -g: a node's, a GPU's
            grouped[last].append((values | {"part": values.get("cell", "")}, heads))
        elif base:
            grouped.setdefault(base, []).append((values | {"step": step}, heads))
            first.setdefault(base, number)
            last = base
        else:
            drafts.nameless[number] = values
    for base, own in grouped.items():
        drafts.line = first[base]
        draft = drafts.of(base)
        _fold(own, draft)
        draft.is_row = True


_PLAIN: Final = (
    *("state", "exit_code", "jobs", "nodes", "tasks", "elapsed_s", "limit_s", "printed_efficiency"),
    *(
        "printed_memory_efficiency",
        "printed_time_efficiency",
        "gpus",
        "gpu_efficiency",
        "gpus_unused",
    ),
    *(
        "gpu_memory_efficiency",
        "nodes_unused",
        "cores",
        "tres",
        "memory_asked_mib",
        "cores_per_gpu",
        "cores_per_node",
    ),
    *("core_walltime_s", "user_s", "system_s"),
)


# `batch`, `extern`, a number; cut by sacct: `bat+`.
_STEP: Final = re.compile(r"\.(batch|extern|interactive|\d+|[a-z]{1,11}\+?)$")


def _step(job_id: str) -> tuple[str, str]:
    """Split a job id into job and step: `123.batch` into `123` and `batch`.

    The step is empty for others, such as `7712.server` of PBS.
    """
    found = _STEP.search(job_id)
    cut = "batch extern interactive"
    if not found or not (
        found[1].isdecimal() or any(x.startswith(found[1].rstrip("+")) for x in cut.split())
    ):
        return job_id, ""
    return job_id[: found.start()], found[1]


def see_nameless(values: Mapping[str, Any], drafts: Drafts) -> None:
    """Read a row without an id into the job whose text surrounds the table."""
    draft = drafts.here()
    if "card_share" in values:
        draft.values.setdefault("card_shares", []).append(values["card_share"])
        return
    if draft.id and "jobs" in values:
        draft = drafts.fresh()
    _see_row(values, draft)


def _see_row(values: Mapping[str, Any], draft: Draft) -> None:
    for name in (*_PLAIN, "cpu_s", "ave_cpu_s", "memory_mib"):
        if name in values:
            draft.see(name, values[name], CELL)
    if "asked_per" in values:
        draft.see("memory_asked_mib.per", values["asked_per"], CELL)
    if "summary" in values:
        see_summary(values["summary"], draft)


def _fold(rows: Sequence[Row], draft: Draft) -> None:
    heads = [head for _, each in rows for head in each]
    lowered = {head.lower() for head in heads}
    rows = _cut_steps(rows)
    accounting = bool(lowered & {"maxrss", "totalcpu", "alloctres", "alloccpus", "ncpus", "reqmem"})
    own = [values for values, _ in rows if not values.get("step") and "part" not in values]
    starts = [
        at for at, (values, _) in enumerate(rows) if not values.get("step") and "part" not in values
    ]
    if accounting and _are_attempts(own):
        _see_lost(own[:-1], draft)
        rows = rows[starts[-1] :]
        own = own[-1:]
    steps = [values for values, _ in rows if values.get("step")]
    job: dict[str, Any] = {}
    for values in own:  # of several tables, each may have columns of its own
        job = values | job
    if not draft.source:
        draft.source = _source(lowered)
    draft.labels.update(lowered)
    _see_row(
        {name: value for name, value in job.items() if name not in ("cpu_s", "memory_mib")}, draft
    )
    parts = [values for values, _ in rows if "part" in values]
    cards = [each for each in parts if str(each["part"]).isdecimal() and "gpu_efficiency" in each]
    if cards:
        draft.see("gpus", float(len(cards)), 1)
        draft.see("gpus_unused", float(sum(not each["gpu_efficiency"] for each in cards)), CELL)
    state = str(job.get("state", "") or (steps[0].get("state", "") if steps else ""))
    if any(str(step.get("state", "")) == "OUT_OF_MEMORY" for step in steps):
        state = "OUT_OF_MEMORY"  # it leaves its job FAILED, or even COMPLETED
        draft.see("state", state, CELL + 1)
    elif not job and state:
        draft.see("state", state, CELL)
    if not own and "avecpu" in lowered and not lowered & _OF_JOBS:
        state, draft.source = "RUNNING", "sstat"
        draft.see("state", state, 1)
    if not steps and not accounting:
        _see_row(job, draft)
        return
    if state in ("RUNNING", "COMPLETING", "SUSPENDED"):
        _see_so_far(rows, draft)
    else:
        _see_cpu(job, steps, lowered, draft)
        _see_memory(job, steps, draft)
    if not job:
        for step in steps:
            for name in ("elapsed_s", "cores", "nodes", "exit_code", "memory_asked_mib"):
                if name in step:
                    draft.see(name, step[name], 1)
            if "asked_per" in step:
                draft.see("memory_asked_mib.per", step["asked_per"], 1)
    by_srun = [step for step in steps if str(step["step"]).isdecimal()]
    if len(by_srun) == 1 and "tasks" in by_srun[0]:
        draft.see("tasks", by_srun[0]["tasks"], 1)
    _see_gpu_use(job, steps, draft)


def _see_so_far(rows: Sequence[Row], draft: Draft) -> None:
    """Read what a running job used: of its running steps by sstat, of ended ones by sacct."""
    steps = [(values, "AveCPU" in heads) for values, heads in rows if values.get("step")]
    running = {values["step"]: values for values, sampled in steps if sampled}
    if not any("ave_cpu_s" in values for values in running.values()):
        draft.notes.append(ONLY_ENDED)
        return
    ended = [
        values
        for values, sampled in steps
        if not sampled and values["step"] not in running and "cpu_s" in values
    ]
    cpu_s = sum(values["cpu_s"] for values in ended)
    cpu_s += sum(each.get("ave_cpu_s", 0.0) * each.get("tasks", 1) for each in running.values())
    draft.see("cpu_s", cpu_s, CELL + 1)
    _see_memory({}, [*ended, *running.values()], draft)
    draft.notes.append(SAMPLED)


def _cut_steps(rows: Sequence[Row]) -> Sequence[Row]:
    """Mark all rows but the first as steps if sacct has cut their ids, as in `15715316_97+`."""
    cells = [str(values.get("cell", "")) for values, _ in rows]
    if len(rows) < 2 or len(set(cells)) > 1 or not cells[0].endswith("+"):
        return rows
    return [rows[0], *((values | {"step": "cut"}, heads) for values, heads in rows[1:])]


# What sacct has of a job or step, and sstat, which shows running steps only, has not.
_OF_JOBS: Final = frozenset(
    ("state", "elapsed", "totalcpu", "exitcode", "alloccpus", "ncpus", "alloctres", "reqmem")
)


def _source(heads: set[str]) -> str:
    if heads & {"cpueff", "memeff", "timeeff"}:
        return "reportseff"
    if "jobeff" in heads:
        return "NAU jobstats"
    if {"realtime", "%cpu"} <= heads:
        return "Nextflow"
    if heads & {"maxrss", "totalcpu", "alloctres", "alloccpus", "ncpus", "reqmem", "avecpu"}:
        return "sacct"
    return ""


def _are_attempts(own: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the rows are several starts of one job, as `sacct -D` lists them.

    Otherwise they are one row that was printed twice.
    """
    shown = [(each.get("state"), each["elapsed_s"]) for each in own if "elapsed_s" in each]
    return len(set(shown)) > 1


def _see_lost(attempts: Sequence[Mapping[str, Any]], draft: Draft) -> None:
    hours = [
        each["elapsed_s"] * each["cores"] / 3600
        for each in attempts
        if "elapsed_s" in each and "cores" in each
    ]
    draft.see("attempts", float(len(attempts) + 1), CELL)
    if hours:
        draft.see("lost_core_hours", sum(hours), CELL)


def _see_cpu(
    job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], heads: set[str], draft: Draft
) -> None:
    total = job.get("cpu_s")
    if total is None and any("cpu_s" in step for step in steps):
        total = sum(step.get("cpu_s", 0.0) for step in steps)
    if total is not None:
        if total or steps:
            draft.see("cpu_s", total, CELL + 1)
        else:
            draft.notes.append(NO_STEPS)
        return
    means = [
        (step["ave_cpu_s"], step.get("tasks", 1)) for step in steps if "ave_cpu_s" in step
    ] or [
        (seconds, step.get("tasks", 1))
        for step in steps
        if (seconds := _tres_time(str(step.get("tres_used", ""))))
    ]
    if means:
        draft.see("cpu_s", sum(mean * tasks for mean, tasks in means), CELL + 1)
        if "avecpu" in heads:
            draft.notes.append(MEAN)
    elif "core_walltime_s" in job:
        draft.notes.append(RESERVED)


def _tres_time(text: str) -> float | None:
    found = re.search(r"(?:^|,)cpu=([\d:.-]+)", text)
    return duration(found[1]) if found else None


def tres_figure(text: str, name: str) -> float | None:
    """Return a number from Slurm's TRES, such as 8 for `cpu` in `billing=122,cpu=8,mem=30G`.

    Suffixes K, M, G, T and P are applied, in powers of 1024. None if the name is missing.
    """
    found = re.search(rf"(?:^|,){name}=(\d{{1,18}}(?:\.\d+)?)([KMGTP]?)", text)
    if not found:
        return None
    return (
        float(found[1])
        * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}[found[2]]
    )


def _see_memory(job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], draft: Draft) -> None:
    peaks: list[tuple[float, float]] = []
    for step in steps:
        largest = step.get("memory_mib")
        if largest is None and (held := tres_figure(str(step.get("tres_used", "")), "mem")):
            largest = held / 2**20
        if largest is not None:
            peaks.append((largest, step.get("tasks", 1) or 1))
    if not peaks and "memory_mib" in job and not steps:
        draft.see("memory_mib", job["memory_mib"], CELL + 1)
        return
    most = max(peaks, key=lambda each: each[0] * each[1], default=None)
    if most and any(_may_be_one_of_many(step, job) for step in steps):
        draft.see("memory_mib", max(largest for largest, _ in peaks), CELL + 1)
        draft.see("memory_counted", ONE_TASK, CELL)
        draft.notes.append(LARGEST_TASK)
        return
    if most and _ran_together(job, steps):
        draft.see("memory_mib", sum(largest * tasks for largest, tasks in peaks), CELL + 1)
        draft.see("memory_counted", "steps together", CELL)
        draft.notes.append(TOGETHER)
    elif most:
        draft.see("memory_mib", most[0] * most[1], CELL + 1)
        if most[1] > 1:
            draft.see("memory_counted", "task x tasks", CELL)
            draft.notes.append(TASKS)


# As much CPU time as this many busy cores may be of one process.
_ONE_CORE: Final = 1.15


def _may_be_one_of_many(step: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    """Return whether a step's peak of memory may be that of one task of several.

    That is so for a step of srun without a number of tasks, on several nodes or with several
    busy cores.
    """
    by_srun = str(step["step"]).isdecimal() or step["step"] == "cut"
    if not by_srun or "memory_mib" not in step or "tasks" in step:
        return False
    nodes = job.get("nodes") or step.get("nodes", 1)
    elapsed = step.get("elapsed_s") or job.get("elapsed_s")
    busy = step.get("cpu_s", job.get("cpu_s", 0.0)) / elapsed if elapsed else 0.0
    return bool(nodes > 1 or (busy > _ONE_CORE and step["step"] != "cut"))


def _ran_together(job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether some steps that srun started overlapped: together they outlast the job."""
    lengths = [
        float(step.get("elapsed_s", 0.0)) for step in steps if str(step.get("step", "")).isdecimal()
    ]
    longest = max(float(job.get("elapsed_s", 0.0)), *lengths) if lengths else 0.0
    # Each is rounded to seconds.
    return sum(lengths) > longest + len(lengths)


def _see_gpu_use(job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], draft: Draft) -> None:
    shares = [
        share
        for step in (job, *steps)
        if (share := tres_figure(str(step.get("tres_used", "")), "gres/gpuutil")) is not None
    ]
    if shares:
        draft.see("gpu_efficiency", max(shares) / 100, CELL)
