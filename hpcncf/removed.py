"""What earlier versions had: since when it is gone, and what to use instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

SINCE: Final = "0.2.0"

VERBS: Final = {
    "bench": "use `hpcncf data bench JOB.yaml`",
    "completion": "use `hpcncf --print-completion bash`",
    "predict": "run the configuration, or let `hpcncf tune JOB.yaml` choose which to run",
    "train": "use `python -m hpcncf.worker JOB.yaml`",
}
"""Command -> what to use instead."""

OPTIONS: Final = {
    ("diagnose", "--predict"): "`hpcncf report` writes next.yaml with the remedies to try",
    ("doctor", "--results"): "`hpcncf status --failures` has the errors of runs",
    ("submit", "--check-node"): "run `srun hpcncf doctor` on a node first",
}
"""Command and option -> what to use instead."""

_CLUSTER: Final = "use --cluster local, or `python -m hpcncf.worker JOB.yaml` for one run"
OPTION_VALUES: Final = {
    ("submit", "--cluster", "debug"): _CLUSTER,
    ("retry", "--cluster", "debug"): _CLUSTER,
}
"""Command, option and value -> what to use instead."""


def describe_removed_cluster(name: str) -> str | None:
    """Describe the replacement of a removed cluster of `hpcncf.submit`; None for any other."""
    if name != "debug":
        return None
    return f'cluster="debug" is gone since {SINCE}: call the function itself, or use "local"'


def describe_removed_verb(verb: str) -> str:
    """Describe the replacement of a command that earlier versions had."""
    return f"hpcncf {verb} is gone since {SINCE}: {VERBS[verb]}."


def find_removed_option(words: Sequence[str]) -> str | None:
    """Describe the replacement of a command line's first removed option; None without any."""
    verb = words[0] if words else ""
    before = words[: words.index("--")] if "--" in words else words
    for at, word in enumerate(before):
        option, equals, value = word.partition("=")
        if (verb, option) in OPTIONS:
            return f"hpcncf {verb} {option} is gone since {SINCE}: {OPTIONS[verb, option]}."
        if not equals and at + 1 < len(before):
            value = before[at + 1]
        if instead := OPTION_VALUES.get((verb, option, value)):
            return f"hpcncf {verb} {option} {value} is gone since {SINCE}: {instead}."
    return None


class RemovedSetting(NamedTuple):
    """A setting that earlier job files could have."""

    default: Any
    """Its value in plans and job files that did not set it."""
    instead: str
    """What to use instead."""


_DDP = "DistributedDataParallel has torch's defaults; use sync: rows to send less"
_LR = "set training.lr to the learning rate of the whole batch"
_PRICES = "compare configurations by core-hours and GPU-hours"

SETTINGS: Final = {
    "training.lr_scale": RemovedSetting("none", _LR),
    "training.lr_base_batch": RemovedSetting(256, _LR),
    "training.bucket_mb": RemovedSetting(None, _DDP),
    "training.gradient_as_bucket_view": RemovedSetting(False, _DDP),
    "training.static_graph": RemovedSetting(False, _DDP),
    "training.interop_threads": RemovedSetting(
        1, "it is 1, since the operations of this model wait for each other; set training.threads"
    ),
    "training.collate": RemovedSetting(
        "default", "use training.loader: batched, which has nothing to collate"
    ),
    "training.workers": RemovedSetting(
        "process", "DataLoader workers are processes; set training.num_workers"
    ),
    "training.tf32": RemovedSetting(False, "use training.precision: bfloat16"),
    "training.sync_every": RemovedSetting(16, "use training.sync: rows, or one rank with threads"),
}
"""Dotted setting of a job file -> what it was and what to use instead."""

SITE_SETTINGS: Final = {"prices": _PRICES, "currency": _PRICES}
"""Setting of a site file -> what to use instead."""

VALUES: Final = {
    ("training.sync", "local_sgd"): ("dense", "use rows, or one rank with more threads"),
    ("training.pin", "numa"): ("cores", "use cores"),
    ("data.dataset", "yelp"): ("csv", "use csv; docs/data.md has the recipe"),
}
"""Dotted setting and a value that it had -> a value that it has, and what to use instead."""


def describe_removed_setting(dotted: str) -> str | None:
    """Describe the replacement of a job file's removed setting; None for any other setting."""
    if dotted not in SETTINGS:
        return None
    return f"{dotted} is gone since {SINCE}: {SETTINGS[dotted].instead}"


def describe_removed_site_setting(name: str) -> str | None:
    """Describe the replacement of a site file's removed setting; None for any other setting."""
    found = SITE_SETTINGS.get(name)
    return found and f"{name} is gone since {SINCE}: {found}"


def describe_removed_value(dotted: str, value: Any) -> str | None:
    """Describe the replacement of a setting's removed value; None for any other value."""
    found = VALUES.get((dotted, value)) if isinstance(value, str) else None
    return found and f"{dotted}: {value} is gone since {SINCE}: {found[1]}"


def drop_removed_defaults(plain: dict[str, Any]) -> None:
    """Delete removed settings that have their former default values, in place."""
    for dotted, setting in SETTINGS.items():
        section, name = dotted.split(".")
        settings = plain.get(section)
        if isinstance(settings, dict) and name in settings and settings[name] == setting.default:
            del settings[name]


def drop_removed_settings(plain: dict[str, Any]) -> dict[str, Any]:
    """Delete removed settings from the sections of an older version's plan, in place.

    Returns dotted setting -> value of those that had another value than their default.
    """
    drop_removed_defaults(plain)
    dropped: dict[str, Any] = {}
    for dotted in SETTINGS:
        section, name = dotted.split(".")
        settings = plain.get(section)
        if isinstance(settings, dict) and name in settings:
            dropped[dotted] = settings.pop(name)
    for (dotted, value), (now, _) in VALUES.items():
        section, name = dotted.split(".")
        settings = plain.get(section)
        if isinstance(settings, dict) and settings.get(name) == value:
            settings[name] = now
            dropped[dotted] = value
    return dropped
