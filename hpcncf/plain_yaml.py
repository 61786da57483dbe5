"""YAML 1.2 text as plain data: scalars that mean what they say, errors that say where."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from hpcncf.errors import UsageError, shown


class Loader(yaml.SafeLoader):
    """Safe YAML whose scalars mean what they say: `1e-3` is a number, `no` and `1:30` are text.

    PyYAML speaks YAML 1.1, where it is the other way round. Keys given twice are refused.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012
    # YAML 1.2's own tags only: no dates, sets, bytes.
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
                    None, None, f"a key must be plain text, came {shown(key)}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _scalar(convert: Callable[[str], Any]) -> Callable[[Loader, yaml.ScalarNode], Any]:
    """A constructor that says where the text is which an explicit tag (`!!int abc`) got wrong."""

    def construct(loader: Loader, node: yaml.ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        try:
            return convert(text)
        except (ValueError, LookupError):
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"not of type {kind}: {shown(text)}", node.start_mark
            ) from None

    return construct


TRUTH = {"true": True, "false": False}

for tag, pattern, first, convert in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: TRUTH[text.lower()]),
    ("null", r"~|null|Null|NULL|", "~nN", lambda _: None),
    ("int", r"[-+]?[0-9]+", "-+0123456789", int),  # YAML 1.1's own would read 010 as eight
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        "-+0123456789.",
        float,
    ),
):
    Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}",
        re.compile(rf"^(?:{pattern})$"),
        [*first, ""] if tag == "null" else list(first),
    )
    Loader.add_constructor(f"tag:yaml.org,2002:{tag}", _scalar(convert))


def parse(text: str, where: str) -> Any:
    """The YAML text as plain data. Raises UsageError with `where`, line and column."""
    try:
        return yaml.load(text, Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise UsageError(f"{where}{at}: not readable as YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not readable as YAML: {error}") from None
    except RecursionError:
        raise UsageError(f"{where}: not readable as YAML: nested too deeply") from None


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
