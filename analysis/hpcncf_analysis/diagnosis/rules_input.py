"""Rules on input: samples made in Python, slow files, DataLoader workers.

Steps that wait for their batches have one of four causes, by who makes these and how.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hpcncf.lint.rules import DRAW_NEGATIVES
from hpcncf.text import pluralize
from hpcncf_analysis.diagnosis import expected_gain, thresholds
from hpcncf_analysis.diagnosis.evidence import Evidence, Finding, Gain
from hpcncf_analysis.diagnosis.expected_gain import applied, faster, in_process, reduced, removed
from hpcncf_analysis.diagnosis.facts import LoaderFacts
from hpcncf_analysis.diagnosis.source_lines import CodeLocation
from hpcncf_analysis.formatting import format_cores, format_percent

# Lines that unpack a sample, which no array operation does for a whole batch.
UNPACKS: Final = re.compile(
    r"decod|decompress|image|jpe?g|audio|h5py|parse|tokeni|json\.|execute\(|"
    r"\b(load|open|imread|read\w*)\(|\bre\.(find|split|sub)|strptime"
)
NEGATIVES: Final = re.compile(r"neg|random\.sample\(|set\(.*\) ?-|not in |\bwhile \w+ in ")
# A comparison inside of an index.
MASK: Final = re.compile(r"\w\[.*(==|!=|[<>]=?|\.eq\(|\.isin\().*\]")
NEXT_OF_ITER: Final = re.compile(r"next\(\s*iter\(")
# Cores that must idle for one more worker to run on.
ROOM: Final = 0.7
KEEP_WORKERS: Final = (
    "Keep the workers (hpcncf run --with persistent_workers), or make the batches in the main "
    "process (--with workers=0)."
)


def python_input(evidence: Evidence) -> Finding | None:
    """Find steps that wait for samples computed one by one in Python.

    Our own training's loader is known; a command's input that computes is taken for one.
    """
    share, loader = _share(evidence), evidence.loader
    one_by_one = not evidence.trained or evidence.training.get("loader") == "per_sample"
    if not evidence.worth(share) or not one_by_one or _waits(evidence) > 0.5:
        return None
    if loader and (loader.is_costly or _helps(evidence, loader)):
        return None
    facts = [f"{format_percent(share)} of the time the training thread is in its data loader"]
    if loader and loader.workers:
        facts = _facts_of_workers(loader, share)
    else:
        facts[0] += f", which computes for {format_percent(1 - _waits(evidence))} of that"
    if evidence.trained:
        workers = pluralize(evidence.workers, "worker")
        facts.append(f"training.loader is per_sample, with {workers}")
        remedy = "Make whole batches at once with tensor or array operations: training.loader "
        remedy += "vectorized."
        changes = applied(evidence, loader="vectorized")
        gain = expected_gain.vectorized(evidence)
        return Finding("python_input", share, "time", tuple(facts), remedy, changes, gain)
    if loader and loader.workers:
        remedy = "Make whole batches at once with array operations (`__getitems__`): all cores are "
        remedy += "busy, so more workers will not help."
        places: Sequence[CodeLocation] = loader.places
        most = removed(share)
    else:
        places = evidence.places("input")
        remedy, most = _remedy_by_line(evidence, share, places)
    return Finding(
        "python_input",
        share,
        "time",
        tuple(facts),
        remedy,
        gain=most if evidence.inside else None,
        places=tuple(places),
    )


def _share(evidence: Evidence) -> float:
    """Share of the time lost to slow batches, waits for new workers included."""
    loader = evidence.loader
    if evidence.inside and loader and loader.workers and evidence.worth(loader.waits):
        return min(1.0, loader.waits + loader.starts)
    return evidence.of_time("input")


def _waits(evidence: Evidence) -> float:
    """Share of the input phase in which no thread computes; 0 if workers make the batches.

    What a program's workers do meanwhile is seen in a worker.
    """
    loader = evidence.loader
    if evidence.inside and loader and loader.workers:
        return 0.0
    return evidence.waiting("input")


def _helps(evidence: Evidence, loader: LoaderFacts) -> bool:
    """Whether one more worker would have work to do and an idle core to run on."""
    return loader.workers > 0 and loader.busy is not None and evidence.idle_cores >= ROOM


def _facts_of_workers(loader: LoaderFacts, share: float) -> list[str]:
    facts = [
        f"{format_percent(share)} of the time the training thread waits for "
        f"{pluralize(loader.workers, 'loader worker')}"
    ]
    if loader.busy is not None:
        facts.append(f"a worker is busy for {format_percent(loader.busy)} of its time")
    return facts


def _remedy_by_line(
    evidence: Evidence, share: float, places: Sequence[CodeLocation]
) -> tuple[str, Gain]:
    """Choose a remedy for slow input from the hot lines' text, with its expected gain."""
    text = " ".join(f"{each.function} {each.source or ''}" for each in places[:1]).lower()
    idle = int(evidence.idle_cores + 0.3)
    if UNPACKS.search(text):
        once = "Do it once and keep the arrays (numpy.save, Parquet)"
        if idle < 1:
            return f"{once}.", removed(share)
        # As many batches at a time as there are idle cores, beside the steps.
        most = 1 / max(1 - share, share / idle, 0.05)
        workers = (
            f"num_workers={idle}, for {pluralize(idle, 'core')} {'is' if idle == 1 else 'are'}"
        )
        return f"{once}, or read in DataLoader workers ({workers} idle).", Gain(
            max(1.0, 0.8 * most), 1.0, max(1.0, most, faster(share))
        )
    calls = " ".join(each.source or "" for each in places)
    loader = evidence.loader
    remedy = "Make whole batches at once by array operations: hpcncf.remedies.BatchLoader."
    if NEXT_OF_ITER.search(calls):
        remedy = (
            "Go through the loader by a plain `for batch in loader`: next(iter(loader)) begins an "
            "epoch, with its order, for each batch."
        )
    elif NEGATIVES.search(text):
        remedy = f"{DRAW_NEGATIVES}."
    elif MASK.search(text):
        remedy = (
            "Group the rows once (sorted by key, with offsets) and take a sample's by index: this "
            "line searches the whole table for each sample."
        )
    elif loader and loader.whole_batches is False:
        remedy = (
            "Make whole batches at once by array operations: keep the chosen rows in one tensor, "
            "or give the data set `__getitems__(rows)`; hpcncf.remedies.BatchLoader takes both."
        )
    return remedy, reduced(share, expected_gain.VECTORIZED)


def input_io(evidence: Evidence) -> Finding | None:
    """Find steps, or a command without phases, that wait for files."""
    waits = _waits(evidence)
    share = _share(evidence) if waits > 0.5 else 0.0
    if not evidence.worth(share) and not evidence.of_steps:
        waited_s = evidence.blocked_s if evidence.iowait_s is None else evidence.iowait_s
        share = min(evidence.of_elapsed(waited_s) / evidence.world_size, evidence.idle, 1.0)
    if not evidence.worth(share):
        return None
    facts = []
    if evidence.of_steps:
        facts.append(
            f"{format_percent(share)} of the time the training thread is in its data loader, "
            f"which waits for {format_percent(waits)} of that"
        )
    else:
        facts.append(f"no CPU of the run computes for {format_percent(share)} of the time")
    if evidence.iowait_s:
        facts.append(f"its threads waited {evidence.iowait_s:.0f} s for disks")
    if evidence.read_mib:
        facts.append(f"{evidence.read_mib:,.0f} MiB were read from storage")
    if evidence.major_faults:
        facts.append(f"{evidence.major_faults:,} page faults read from a disk")
    return Finding(
        "input_io",
        share,
        "time",
        tuple(facts),
        "Read ahead with DataLoader workers, from a faster place (node-local disk or memory), in "
        "larger pieces.",
        gain=removed(share) if evidence.inside else None,
        places=evidence.places("input"),
    )


def too_few_workers(evidence: Evidence) -> Finding | None:
    """Find busy loader workers that make the steps wait while usable cores idle."""
    share, loader = _share(evidence), evidence.loader
    if not loader or not loader.workers or not evidence.worth(evidence.of_time("input")):
        return None
    if loader.is_costly or not _helps(evidence, loader):
        return None
    idle = evidence.idle_cores
    more = loader.workers + max(1, int(idle + 0.3))
    most = min(more / loader.workers, faster(share))
    return Finding(
        "too_few_workers",
        share,
        "time",
        (*_facts_of_workers(loader, share), f"{format_cores(idle)} usable cores are idle"),
        f"Use more workers (hpcncf run --with workers={more}), or make a sample cheaper.",
        gain=Gain(most, 1.0, most),
        places=loader.places,
    )


def worker_overhead(evidence: Evidence) -> Finding | None:
    """Find DataLoader workers that cost more than they save.

    The steps wait for their batches longer than making them would take, or an epoch waits for
    its workers to start.
    """
    loader = evidence.loader
    if loader is None:
        return None
    input_is_worth = evidence.worth(evidence.of_time("input"))
    share = loader.starts
    if loader.is_costly or (evidence.inside and not input_is_worth):
        share += loader.waits
    few_starts = loader.starts < thresholds.WORTH / 2
    if not evidence.worth(share) or (few_starts and not (loader.is_costly and input_is_worth)):
        return None
    facts = _facts_of_workers(loader, share)
    if loader.computed is not None and loader.is_costly:
        computed = format_percent(loader.computed)
        facts.append(f"making their batches would take {computed} of the steps' time at most")
    if evidence.worth(loader.starts):
        facts.append(
            f"{format_percent(loader.starts)} of the time workers start and stop, and epochs wait "
            "for their first batch"
        )
    changes, gain = applied(evidence, num_workers=0), None
    remedy = (
        "Make the batches in the main process (hpcncf run --with workers=0), or send larger ones."
    )
    if evidence.trained:
        remedy = "Make the batches in the rank's own process: num_workers 0, or training.loader "
        remedy += "vectorized."
        if evidence.children_s is not None:
            gain = in_process(evidence)
    elif (loader.epochs > 2 and not loader.persistent) or not loader.is_costly:
        facts.append(f"they are started again for each of {loader.epochs} epochs")
        remedy = KEEP_WORKERS
    return Finding(
        "worker_overhead",
        share,
        "time",
        tuple(facts),
        remedy,
        changes,
        gain if evidence.trained else removed(share),
        (*loader.made_at, *loader.places, *evidence.places("workers"))[:3],
    )
