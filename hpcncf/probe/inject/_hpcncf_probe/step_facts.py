"""What a step is made of: its graph of operations, its numbers, the options that slow it.

Looked at as `backward` begins, in the 2nd, 4th, 8th, ... pass: a graph of 1,000 nodes takes a
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
    """Note the graph of these tensors; a failure leaves it unknown."""
    NEXT[0] = 2 * number
    try:
        if not isinstance(tensors, (list, tuple)):
            tensors = (tensors,)
        LOOKS.append([number, *_graph(torch, tensors), _hooks_registered()])
        OPTIONS.update(_options(torch))
    except Exception:
        pass


def own(optimizer):
    """Note which parameters an optimizer updates."""
    OWNERS.add(id(optimizer))
    try:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                OWNED[id(parameter)] = True
    except Exception:
        pass


def _graph(torch, tensors):
    """Nodes, whether there are more, leaves, numbers in them, in those of no optimizer, in those of
    float64, and whether the result is of float64 and of nothing else."""
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
    """Hooks that were ever registered on a module or a tensor, removed or not."""
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
    """Variable -> threads that it gives to a library."""
    given = {name: os.environ.get(name, "") for name in THREAD_VARIABLES}
    return {name: int(value) for name, value in given.items() if value.isdigit()}


def private_mib():
    """MiB of memory that no other process shares: what a forked worker has copied or made."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Private_Dirty:"):
                    return int(line.split()[1]) / 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def makes_whole_batches(dataset):
    """Whether a data set can be indexed by many rows at once: tensors, or `__getitems__`."""
    kind = type(dataset)
    while kind.__name__ == "Subset" and kind.__module__.startswith("torch.utils.data"):
        dataset = getattr(dataset, "dataset", None)
        kind = type(dataset)
        if kind.__name__ == "Subset":
            return False
    if kind.__name__ == "TensorDataset":
        return True
    return hasattr(kind, "__getitems__") and not kind.__module__.startswith("torch.utils.data")
