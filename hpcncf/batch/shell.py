"""Split shell text into commands and words, with their lines; nothing is run or expanded.

Covers what batch scripts in sh, bash and zsh contain: quotes, continuation lines, comments, pipes,
lists, loops, conditions, functions, subshells, here documents and substitutions. Text that no shell
would take is split as far as possible, in time linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Final, Literal

MOST_COMMANDS: Final = 5_000
MOST_CHARACTERS: Final = 200_000
# Of one command; more are read and dropped.
MOST_WORDS: Final = 1_000
# Substitutions inside substitutions: each level is read again.
DEEPEST: Final = 6
# A substitution that does not end within so many characters is taken for text.
LONGEST_SUBSTITUTION: Final = 20_000

PLAIN: Final = re.compile(r"[^\s;&|()<>\\\"'$`]+")
PLAIN_QUOTED: Final = re.compile(r"[^\\\"$`]+")
BLANK: Final = re.compile(r"(?:[ \t\r\f\v]|\\\r?\n)+")
COMMENT: Final = re.compile(r"#[^\n]*")
REDIRECT: Final = re.compile(r"(?:\d+|\{\w+\})?(?:<<<|<<-?|>>|>&|<&|<>|>\||[<>])|&>>?")
OPERATOR: Final = re.compile(r"&&|\|\||\|&|;;&|;;|;&|[;&|()\n]")
VARIABLE: Final = re.compile(
    r"\$(?:([A-Za-z_]\w*|[0-9@*#?$!-])|\{([!#]?)([A-Za-z_]\w*|[0-9@*])([^{}]*)\})"
)
PARENTHESIS: Final = re.compile(r"[()\"'\\`]")
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?(\+?)=")
DEEPEST_BLOCK: Final = 64
ENDS: Final = {"fi": ("if",), "done": ("for", "while"), "esac": ("case",), "}": ("group",)}
DECLARES: Final = frozenset({"export", "declare", "typeset", "local", "readonly"})

PartKind = Literal["text", "variable", "command", "arithmetic"]
BlockKind = Literal["for", "while", "if", "case", "function", "subshell", "group"]


@dataclass(frozen=True)
class Part:
    """A piece of a word: literal text, or something that the shell replaces."""

    kind: PartKind
    text: str
    """The text itself, the variable's name, or what is inside of `$(...)` and `$((...))`."""
    quoted: bool = False
    operation: str = ""
    """Of `${name:-default}`: `:-default`."""


@dataclass(frozen=True)
class Word:
    raw: str
    """As it is written, quotes included."""
    start: int
    """Offset in the text, from 0."""
    line: int
    """From 1."""
    parts: tuple[Part, ...]

    @property
    def end(self) -> int:
        return self.start + len(self.raw)

    @cached_property
    def literal(self) -> str | None:
        """The word's text without quotes; None if the shell replaces a part of it."""
        if any(part.kind != "text" for part in self.parts):
            return None
        return "".join(part.text for part in self.parts)

    @cached_property
    def text(self) -> str:
        """The word's literal text, with variables as `$name` and commands as `$(...)`."""
        return "".join(map(_show_part, self.parts))

    def variables(self) -> Iterator[str]:
        return (part.text for part in self.parts if part.kind == "variable")


def _show_part(part: Part) -> str:
    if part.kind == "variable":
        return f"${part.text}"
    return part.text if part.kind == "text" else f"$({part.text})"


@dataclass(eq=False)
class CompoundCommand:
    """A loop, condition, function or group that contains commands."""

    kind: BlockKind
    line: int
    name: str = ""
    """Of a function, or of the variable of a `for` loop."""
    values: tuple[Word, ...] = ()
    """What a `for` loop goes through."""
    in_background: bool = False
    """Whether `&` comes after its end."""


@dataclass
class Command:
    """A simple command: assignments, words and redirections."""

    line: int
    words: tuple[Word, ...]
    assignments: tuple[tuple[str, Word], ...] = ()
    """Before the first word, or of `export` and the like; the words begin after `=`."""
    blocks: tuple[CompoundCommand, ...] = ()
    redirects: tuple[tuple[str, Word], ...] = ()
    here_document: HereDocument | None = None
    ends_with: str = ""
    """The operator after it: `&`, `|`, `&&`, `||`, `;` or a new line."""
    follows: str = ""
    """The operator before it, if it is `|`, `&&` or `||`."""
    in_background: bool = False
    """Whether `&` ends its pipeline."""
    is_condition: bool = False
    """Whether it is what `if`, `elif`, `while` or `until` tests."""
    exports: bool = False
    """Whether it is `export`, `declare -x` or `typeset -x`."""

    @property
    def name(self) -> str:
        """The program's name: `python` of `/usr/bin/python train.py`; empty if it is unknown."""
        return (self.words[0].literal or "").rpartition("/")[2] if self.words else ""

    @property
    def background(self) -> bool:
        return self.in_background or any(block.in_background for block in self.blocks)

    @property
    def loops(self) -> list[CompoundCommand]:
        return [block for block in self.blocks if block.kind in ("for", "while")]

    @property
    def is_conditional(self) -> bool:
        """Whether the command might not run, because of a condition or a function."""
        return self.follows in ("&&", "||") or any(
            block.kind in ("if", "case", "function") for block in self.blocks
        )

    @property
    def last_line(self) -> int:
        word = max((*self.words, *(word for _, word in self.redirects)), key=lambda each: each.line)
        return word.line + word.raw.count("\n")


@dataclass(frozen=True)
class HereDocument:
    text: str
    line: int
    quoted: bool
    """Whether the shell leaves variables in it alone."""


@dataclass
class ShellText:
    """The commands of a shell script, in the order of its lines."""

    commands: list[Command] = field(default_factory=list)
    is_cut: bool = False
    """Whether there was more than is read."""


def parse_shell(text: str, first_line: int = 1) -> ShellText:
    """Parse the commands of a shell script, whose first line has the number `first_line`."""
    return _ShellParser(text, first_line).parse()


def parse_word(text: str, line: int = 1) -> Word:
    """Parse a text as a single word, such as a value between quotes."""
    return _ShellParser(text, line).read_word(0) if text else Word("", 0, line, ())


def split_value(value: Word, line: int) -> list[Word]:
    """Split a variable's value into the words that a shell makes of `$NAME` without quotes.

    Of an array, `(a b)`, these are its elements. They get the line where the variable is used.
    """
    if value.raw.startswith("(") and value.raw.endswith(")"):
        elements = parse_shell(value.raw[1:-1]).commands
        words = [word for command in elements for word in command.words]
        return [Word(word.raw, value.start, line, word.parts) for word in words]
    pieces: list[list[Part]] = [[]]
    for part in value.parts:
        if part.kind != "text":
            pieces[-1].append(replace(part, quoted=False))
            continue
        first, *further = re.split(r"[ \t\n\\]+", part.text)
        if first:
            pieces[-1].append(Part("text", first))
        pieces += [[Part("text", text)] if text else [] for text in further]
    found = [tuple(piece) for piece in pieces if piece]
    return [Word("".join(map(_show_part, piece)), value.start, line, piece) for piece in found]


class _ShellParser:
    def __init__(self, text: str, first_line: int) -> None:
        self.text = text[:MOST_CHARACTERS]
        self.line = first_line
        self.counted = 0
        self.endless = False
        self.no_brace_before = 0
        self.found = ShellText(is_cut=len(text) > MOST_CHARACTERS)
        self.blocks: list[CompoundCommand] = []
        self.here_documents: list[tuple[Command, str, bool, bool]] = []
        self.pipeline: list[Command | CompoundCommand] = []
        self.closed: CompoundCommand | None = None
        self.follows = ""
        self.awaits_pattern = False
        self.is_condition = False

    def line_at(self, position: int) -> int:
        """Return the line number of a position; positions must be passed in ascending order."""
        if position > self.counted:
            self.line += self.text.count("\n", self.counted, position)
            self.counted = position
        return self.line

    def parse(self) -> ShellText:
        text, length = self.text, len(self.text)
        position = 0
        words: list[Word] = []
        redirects: list[tuple[str, Word]] = []
        awaited = ""  # the redirection whose word comes next
        while position < length:
            if blank := BLANK.match(text, position):
                position = blank.end()
                continue
            if text[position] == "#":
                position = COMMENT.match(text, position).end()  # type: ignore[union-attr]
                continue
            is_process = text.startswith(("<(", ">("), position)
            if not is_process and (redirect := REDIRECT.match(text, position)):
                awaited, position = redirect[0].lstrip("0123456789"), redirect.end()
                continue
            if not is_process and (operator := OPERATOR.match(text, position)):
                line = self.line_at(position)
                position = operator.end()
                # `name ()` begins a function.
                if operator[0] == "(" and len(words) == 1 and text.startswith(")", position):
                    position += 1
                    self._open("function", line, words[0].raw)
                    words = []
                    continue
                self._end_command(words, redirects, operator[0], line)
                words, redirects, awaited = [], [], ""
                if operator[0] == "\n":
                    position = self._read_here_documents(position)
                if len(self.found.commands) >= MOST_COMMANDS:
                    self.found.is_cut = True
                    return self.found
                continue
            word = self.read_word(position)
            position = max(word.end, position + 1)
            if len(words) + len(redirects) >= MOST_WORDS:
                self.found.is_cut = True
            elif awaited:
                redirects.append((awaited, word))
                awaited = ""
            else:
                words.append(word)
        self._end_command(words, redirects, "\n", self.line_at(length))
        return self.found

    # Words

    def read_word(self, start: int, until_quote: bool = False) -> Word:
        """Parse the word that begins at an offset."""
        text, length = self.text, len(self.text)
        line = self.line_at(start)
        position, quoted = start, until_quote
        parts: list[Part] = []
        while position < length:
            pattern = PLAIN_QUOTED if quoted else PLAIN
            if plain := pattern.match(text, position):
                parts.append(Part("text", plain[0], quoted))
                position = plain.end()
                continue
            char = text[position]
            if char == '"':
                quoted = not quoted
                parts.append(Part("text", "", True))
                position += 1
            elif char == "'" and not quoted:
                end = text.find("'", position + 1)
                end = length if end < 0 else end
                parts.append(Part("text", text[position + 1 : end], True))
                position = end + 1
            elif char == "\\":
                escaped = text[position + 1 : position + 2]
                if escaped != "\n":
                    kept = quoted and escaped not in ('"', "\\", "$", "`")
                    parts.append(Part("text", f"\\{escaped}" if kept else escaped, True))
                position += 2
            elif char == "$":
                part, position = self._read_dollar(position, quoted)
                parts.append(part)
            elif char == "`":
                end = text.find("`", position + 1, position + LONGEST_SUBSTITUTION)
                if end < 0:
                    parts.append(Part("text", char, quoted))
                    position += 1
                else:
                    parts.append(Part("command", text[position + 1 : end], quoted))
                    position = end + 1
            elif char in "<>" and text.startswith("(", position + 1) and position == start:
                closing = self._closing(position + 2)
                if closing is None:
                    position += 1
                    break
                parts.append(Part("command", text[position + 2 : closing], quoted))
                position = closing + 1
            elif char == "(" and parts and parts[-1].text.endswith("="):
                closing = self._closing(position + 1)  # an array: NAME=(a b)
                if closing is None:
                    break
                parts.append(Part("command", "", quoted))
                position = closing + 1
            else:
                break
        return Word(text[start : min(position, length)], start, line, _joined(parts))

    def _read_dollar(self, position: int, quoted: bool) -> tuple[Part, int]:
        text = self.text
        if text.startswith("$((", position):
            closing = self._closing(position + 2)
            if closing is not None and text[closing - 1] == ")":
                inside = text[position + 3 : closing - 1]
                return Part("arithmetic", inside.strip(), quoted), closing + 1
        if text.startswith("$(", position) and (end := self._closing(position + 2)) is not None:
            return Part("command", text[position + 2 : end].strip(), quoted), end + 1
        if variable := VARIABLE.match(text, position):
            simple, mark, braced, operation = variable.groups()
            if simple is not None:
                return Part("variable", simple, quoted), variable.end()
            return Part("variable", braced, quoted, mark + operation), variable.end()
        if text.startswith("${", position) and position >= self.no_brace_before:
            end = text.find("}", position, position + 400)
            if end > 0:
                name = re.match(r"\$\{[!#]?([A-Za-z_]\w*)", text[position : end + 1])
                known = name[1] if name else "?"
                # `${A:-${B}}` and the like: its value is not followed.
                depth = text.count("{", position, end) - 1
                while depth > 0 and (further := text.find("}", end + 1, position + 400)) > 0:
                    end, depth = further, depth - 1
                return Part("variable", known, quoted, text[position + 2 : end]), end + 1
            self.no_brace_before = position + 400
        if text.startswith("$'", position) and not quoted:
            end = text.find("'", position + 2)
            end = len(text) if end < 0 else end
            return Part("text", text[position + 2 : end], True), end + 1
        return Part("text", "$", quoted), position + 1

    def _closing(self, position: int) -> int | None:
        """Find the parenthesis that closes the one before an offset; None if there is none."""
        if self.endless:
            return None
        text, depth = self.text, 1
        limit = min(len(text), position + LONGEST_SUBSTITUTION)
        while mark := PARENTHESIS.search(text, position, limit):
            position = mark.end()
            char = mark[0]
            if char == "(":
                depth += 1
            elif char == ")":
                depth -= 1
                if not depth:
                    return mark.start()
            elif char == "\\":
                position += 1
            elif char == "'":
                end = text.find("'", position, limit)
                position = end + 1 if end >= 0 else position
            elif char == '"':
                position = self._after_quote(position, limit)
        # Else hostile text would be searched to its end once for each `$(`.
        self.endless = True
        return None

    def _after_quote(self, position: int, limit: int) -> int:
        end = re.compile(r'(?:[^"\\]|\\.)*"', re.DOTALL).match(self.text, position, limit)
        return end.end() if end else position

    # Commands

    def _end_command(
        self, words: list[Word], redirects: list[tuple[str, Word]], operator: str, line: int
    ) -> None:
        """Finish the current command, at an operator or at the end of a line."""
        if self.awaits_pattern and not (words and words[0].raw == "esac"):
            # `a | b)` of a `case`, and blank lines before it, are no commands.
            self.awaits_pattern = operator != ")"
            return
        closed = self._take_keywords(words) or (None if words else self.closed)
        self.closed = None
        if words or (redirects and closed is None):
            self.pipeline.append(self._add_command(words, redirects, operator))
        elif closed is not None:
            self.pipeline.append(closed)
        if operator == "(":
            self._open("subshell", line)
        elif operator == ")":
            self.closed = self._close("subshell")
        elif operator in (";;", ";&", ";;&"):
            self.awaits_pattern = any(block.kind == "case" for block in self.blocks)
        if operator == "&":
            for each in self.pipeline:
                each.in_background = True
        if operator not in ("|", "|&"):
            self.pipeline = [self.closed] if self.closed else []
        if words or operator not in ("\n", ")"):
            self.follows = operator if operator in ("|", "|&", "&&", "||") else ""

    def _take_keywords(self, words: list[Word]) -> CompoundCommand | None:
        """Remove reserved words from the front; return the block that ended, or None."""
        closed: CompoundCommand | None = None
        self.is_condition = False
        while words:
            word, line = words[0].raw, words[0].line
            if word in ENDS:
                closed = self._close(*ENDS[word]) or closed
                self.awaits_pattern = False
            elif word in ("if", "elif", "while", "until"):
                self.is_condition = True
                if word != "elif":
                    self._open("if" if word == "if" else "while", line)
            elif word in ("for", "select"):
                name = words[1].raw if len(words) > 1 else ""
                self._open("for", line, name, tuple(words[3:]))
                words.clear()
                return None
            elif word == "case" and len(words) > 1:
                self._open("case", line)
                self.awaits_pattern = True
                words.clear()
                return None
            elif word == "function" and len(words) > 1:
                self._open("function", line, words[1].raw)
                del words[0]
            elif word == "{":
                self._open("group", line)
            elif word not in ("then", "do", "else", "!", "time", "coproc"):
                return closed
            del words[0]
        return closed

    def _open(
        self, kind: BlockKind, line: int, name: str = "", values: tuple[Word, ...] = ()
    ) -> None:
        # Deeper than anybody writes: hostile text would make each command's blocks longer.
        if len(self.blocks) < DEEPEST_BLOCK:
            self.blocks.append(CompoundCommand(kind, line, name, values))

    def _close(self, *kinds: str) -> CompoundCommand | None:
        """Leave the innermost block of these kinds and return it; None for a stray end."""
        for index in range(len(self.blocks) - 1, -1, -1):
            if self.blocks[index].kind not in kinds:
                continue
            # `f() { ...; }`: the function ends with its group.
            is_body = "group" in kinds or "subshell" in kinds
            if is_body and index and self.blocks[index - 1].kind == "function":
                index -= 1
            block = self.blocks[index]
            del self.blocks[index:]
            return block
        return None

    def _add_command(
        self, words: list[Word], redirects: list[tuple[str, Word]], operator: str
    ) -> Command:
        given = tuple(words)
        assignments: list[tuple[str, Word]] = []
        while words and (pair := _assignment(words[0])):
            assignments.append(pair)
            words.pop(0)
        exports = False
        if words and words[0].raw in DECLARES:
            exports = words[0].raw == "export" or any(
                re.fullmatch(r"-\w*x\w*", each.raw) for each in words
            )
            assignments += [pair for each in words[1:] if (pair := _assignment(each))]
        elif words and words[0].raw == "setenv" and len(words) > 1:  # csh
            value = words[2] if len(words) > 2 else Word("", words[1].end, words[1].line, ())
            assignments.append((words[1].raw, value))
            exports = True
        place = given[0] if given else redirects[0][1]
        command = Command(
            place.line,
            tuple(words),
            tuple(assignments),
            tuple(self.blocks),
            tuple(redirects),
            ends_with=operator,
            follows=self.follows,
            is_condition=self.is_condition,
            exports=exports,
        )
        self.found.commands.append(command)
        for redirect, word in redirects:
            if redirect in ("<<", "<<-"):
                quoted = any(part.quoted for part in word.parts)
                end = word.literal or word.raw
                self.here_documents.append((command, end, redirect == "<<-", quoted))
        return command

    def _read_here_documents(self, position: int) -> int:
        """Read the here documents that begin on this line; return the offset of their end."""
        for command, end, strips, quoted in self.here_documents:
            blank = r"\t*" if strips else ""
            closing = re.compile(rf"^{blank}{re.escape(end)}\r?$", re.MULTILINE)
            ended = closing.search(self.text, position)
            last = ended.start() if ended else len(self.text)
            line = self.line_at(position)
            command.here_document = HereDocument(self.text[position:last], line, quoted)
            position = min(ended.end() + 1, len(self.text)) if ended else len(self.text)
        self.here_documents = []
        return position


def _assignment(word: Word) -> tuple[str, Word] | None:
    """Parse `NAME=value`: return name and value, the value as a word; None for other words."""
    if not word.parts or word.parts[0].kind != "text" or word.parts[0].quoted:
        return None
    found = ASSIGNMENT.match(word.parts[0].text)
    if not found:
        return None
    rest = word.parts[0].text[found.end() :]
    parts = (*((Part("text", rest),) if rest else ()), *word.parts[1:])
    raw = word.raw[found.end() :]
    if found[2]:  # NAME+=value: what it was before is not followed
        parts = (Part("variable", found[1]), *parts)
    return found[1], Word(raw, word.start + found.end(), word.line, parts)


def _joined(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Merge neighbouring pieces of literal text into one."""
    joined: list[Part] = []
    for (is_text, quoted), group in groupby(parts, lambda each: (each.kind == "text", each.quoted)):
        if is_text:
            joined.append(Part("text", "".join(part.text for part in group), quoted))
        else:
            joined += group
    return tuple(joined)
