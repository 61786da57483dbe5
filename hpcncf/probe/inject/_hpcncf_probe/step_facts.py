"""Facts about a training step: its graph of operations, data types, and options that slow it.

Gathered as `backward` begins, in the 2nd, 4th, 8th, ... pass: a graph of 1,000 nodes takes a
millisecond to walk. Nothing is called that changes a tensor or keeps one.
"""

import os
import sys
from time import thread_time

FIRST = 2
# Nodes, and CPU seconds, after which a walk ends: a graph that is kept has no end.
MOST_NODES = 20_000
MOST_S = 0.02
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

LOOKS = []
OWNED = {}
OWNERS = set()
OPTIONS = set()


# The number of the backward pass that is looked at next.
NEXT = [FIRST]


def clear():
    LOOKS.clear()
    OWNED.clear()
    OWNERS.clear()
    OPTIONS.clear()
    NEXT[0] = FIRST


def look(torch, number, tensors):
    """Record facts about the graph of these tensors; after an error the graph stays unknown."""
    NEXT[0] = 2 * number
    try:
        if not isinstance(tensors, (list, tuple)):
            tensors = (tensors,)
        LOOKS.append([number, *_graph(torch, tensors), _hooks_registered()])
        OPTIONS.update(_options(torch))
    except Exception:
        pass


def own(optimizer):
    """Record which parameters an optimizer updates."""
    OWNERS.add(id(optimizer))
    try:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                OWNED[id(parameter)] = True
    except Exception:
        pass


def _graph(torch, tensors):
    """Walk the graph of a backward pass; return its size, its leaves, and their data types.

    Returns: nodes, whether there are more, leaves, numbers in all leaves, in those of no optimizer
    and in those of float64, and whether the result is of float64.
    """
    todo = [each.grad_fn for each in tensors if getattr(each, "grad_fn", None) is not None]
    seen, began = set(todo), thread_time()
    numbers = unowned = doubles = leaves = 0
    while todo:
        node = todo.pop()
        if type(node).__name__ == "AccumulateGrad":
            leaf = node.variable
            count = leaf.numel()
            numbers += count
            leaves += 1
            if OWNED and id(leaf) not in OWNED:
                unowned += count
            if leaf.dtype is torch.float64:
                doubles += count
            leaf = None
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                todo.append(following)
        if len(seen) >= MOST_NODES or (not len(seen) % 64 and thread_time() - began > MOST_S):
            break
    in_double = any(getattr(each, "dtype", None) is torch.float64 for each in tensors)
    return len(seen), bool(todo), leaves, numbers, unowned, doubles, in_double


def _hooks_registered():
    """Return how many hooks were ever registered on modules and tensors, removed ones included."""
    hooks = sys.modules.get("torch.utils.hooks")
    number = getattr(getattr(hooks, "RemovableHandle", None), "next_id", 0)
    return number if isinstance(number, int) else 0


def _options(torch):
    asked = (
        ("detect_anomaly", getattr(torch, "is_anomaly_enabled", None)),
        ("deterministic", getattr(torch, "are_deterministic_algorithms_enabled", None)),
        ("profiler", getattr(torch.autograd, "_profiler_enabled", None)),
    )
    return [name for name, is_on in asked if is_on is not None and is_on()]


def thread_environment():
    """Return the environment variables that set a library's number of threads, with the number."""
    given = {name: os.environ.get(name, "") for name in THREAD_VARIABLES}
    return {name: int(value) for name, value in given.items() if value.isdigit()}


def private_mib():
    """Return this process's unshared memory in MiB: what a forked worker copied or created."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Private_Dirty:"):
                    return int(line.split()[1]) / 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def makes_whole_batches(dataset):
    """Return whether a data set can be indexed by many rows at once: tensors, or `__getitems__`."""
    kind = type(dataset)
    while kind.__name__ == "Subset" and kind.__module__.startswith("torch.utils.data"):
        dataset = getattr(dataset, "dataset", None)
        kind = type(dataset)
        if kind.__name__ == "Subset":
            return False
    if kind.__name__ == "TensorDataset":
        return True
    return hasattr(kind, "__getitems__") and not kind.__module__.startswith("torch.utils.data")
