"""Frozen settings that users write into YAML files, and a strict YAML 1.2 reader for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict

from hpcncf.errors import UsageError, abbreviate

# Names that pydantic puts into a location for a mapping's key and a union's alternatives.
PYDANTIC_PART: Final = re.compile(r"\[key\]$|(literal|function-[a-z]+)\[")


class Settings(BaseModel):
    """Base of everything that a user may write into a file: frozen, without unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def error_location(loc: Iterable[int | str]) -> list[int | str]:
    """The keys that lead to a pydantic error, without pydantic's own names among them."""
    return [part for part in loc if not PYDANTIC_PART.match(str(part))]


class YamlLoader(yaml.SafeLoader):
    """Safe YAML 1.2 without duplicate keys: `1e-3` is a number, `no` and `1:30` are text.

    PyYAML implements YAML 1.1, which reads these the other way round.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012
    # The tags of YAML 1.2 only: no dates, sets, bytes.
    yaml_constructors = {  # noqa: RUF012
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("map", "seq", "str")
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"a key must be plain text, came {abbreviate(key)}",
                    key_node.start_mark,
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _scalar_constructor(
    convert: Callable[[str], Any],
) -> Callable[[YamlLoader, yaml.ScalarNode], Any]:
    """A constructor that reports the place of text that does not fit its tag (`!!int abc`)."""

    def construct(loader: YamlLoader, node: yaml.ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        try:
            return convert(text)
        except (ValueError, LookupError):
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"not of type {kind}: {abbreviate(text)}", node.start_mark
            ) from None

    return construct


_TRUTH: Final = {"true": True, "false": False}

for _tag, _pattern, _first, _convert in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: _TRUTH[text.lower()]),
    ("null", r"~|null|Null|NULL|", "~nN", lambda _: None),
    ("int", r"[-+]?[0-9]+", "-+0123456789", int),  # YAML 1.1 would read 010 as eight
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        "-+0123456789.",
        float,
    ),
):
    YamlLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}",
        re.compile(rf"^(?:{_pattern})$"),
        [*_first, ""] if _tag == "null" else list(_first),
    )
    YamlLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _scalar_constructor(_convert))


def parse_yaml(text: str, where: str) -> Any:
    """The YAML text as plain data. Raises UsageError with `where`, line and column."""
    try:
        return yaml.load(text, YamlLoader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UsageError(f"{where}{at}: not readable as YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not readable as YAML: {error}") from None
    except RecursionError:
        raise UsageError(f"{where}: not readable as YAML: nested too deeply") from None


def read_utf8(path: Path) -> str:
    """The file's text. Raises UsageError if it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
