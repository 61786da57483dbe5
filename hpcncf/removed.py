"""What earlier versions had: since when it is gone, and what to use instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SINCE: Final = "0.2.0"

VERBS: Final = {
    "bench": "use `hpcncf data bench JOB.yaml`",
    "completion": "use `hpcncf --print-completion bash`",
    "predict": "run the configuration, or let `hpcncf tune JOB.yaml` choose which to run",
}
"""Command -> what to use instead."""

OPTIONS: Final = {
    ("diagnose", "--predict"): "`hpcncf report` writes next.yaml with the remedies to try",
}
"""Command and option -> what to use instead."""


def describe_removed_verb(verb: str) -> str:
    """The sentence for a command that is gone."""
    return f"hpcncf {verb} is gone since {SINCE}: {VERBS[verb]}."


def find_removed_option(words: Sequence[str]) -> str | None:
    """The sentence for the first option among a command's words that is gone; None if all stay."""
    verb = words[0] if words else ""
    before = words[: words.index("--")] if "--" in words else words
    for word in before:
        option = word.partition("=")[0]
        if (verb, option) in OPTIONS:
            return f"hpcncf {verb} {option} is gone since {SINCE}: {OPTIONS[verb, option]}."
    return None
