"""Measure how fast a program's steps are in a short trial, then end the program.

A step is a backward pass. Losses of the first steps go to the trial's own file, nowhere else.
"""

import _signal
import os
import sys
import time

from _hpcncf_probe import end as end_process
from _hpcncf_probe import torch_phases
from _hpcncf_probe.as_json import as_json
from _hpcncf_probe.seams import observe_calls

LOSSES = 10
WARM_STEPS, WARM_S = 10, 1.0
LEAST_STEPS, LEAST_S, MOST_S = 20, 2.0, 12.0
CHECK_EVERY_S = 0.25
BLOCKS = 10
STUDENT = 2.262  # 95 %, of BLOCKS - 1 degrees of freedom
PRECISE = 0.03
SEED = 0

FILE = []
TIMES = []
SEEN = []
STATE = {"check_at": 0.0, "ended": False}


def begin(path):
    if path:
        FILE.append(path)


def install(torch):
    """Seed the random number generators, and time the program's backward passes."""
    if not FILE:
        return
    torch.manual_seed(SEED)
    import random

    random.seed(SEED)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(SEED)
    compiling = torch_phases.is_compiling(torch)

    def backward(original, tensors, *args, **kwargs):
        if not compiling():
            _see(torch, tensors)
        return original(tensors, *args, **kwargs)

    observe_calls(torch.autograd.backward, backward)


def _see(torch, tensors):
    now = time.perf_counter()
    TIMES.append(now)
    if len(SEEN) < LOSSES:
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        if loss is not None and loss.numel() == 1:
            SEEN.append(float(loss.detach()))
    if now >= STATE["check_at"]:
        STATE["check_at"] = now + CHECK_EVERY_S
        found = measured()
        if found and (found["error"] <= PRECISE or found["seconds"] >= MOST_S):
            _leave()


def measured():
    """Return the speed of the steps after the warm-up; None while there are too few."""
    from bisect import bisect_left

    times = TIMES[max(WARM_STEPS, bisect_left(TIMES, TIMES[0] + WARM_S)) :]
    steps = len(times) - 1
    if steps < 3:
        return None
    seconds = times[-1] - times[0]
    # Of very long steps, a few must do.
    known = seconds >= MOST_S or (steps >= LEAST_STEPS and seconds >= LEAST_S)
    return _figures(times) if known else None


def _figures(times):
    steps = len(times) - 1
    blocks = min(BLOCKS, steps)
    edges = [steps * at // blocks for at in range(blocks + 1)]
    each = [(times[last] - times[first]) / (last - first) for first, last in zip(edges, edges[1:])]
    mean = (times[-1] - times[0]) / steps
    spread = (sum((one - mean) ** 2 for one in each) / max(1, blocks - 1)) ** 0.5
    error = STUDENT * spread / blocks**0.5 / mean
    return {"steps": steps, "seconds": times[-1] - times[0], "step_s": mean, "error": error}


def end():
    """Write the measurements, even if the program ended before they were precise."""
    if not FILE or STATE["ended"] or not TIMES:
        return
    rank = torch_phases.rank()
    if rank is not None and rank[0] != 0:
        return
    STATE["ended"] = True
    found = measured() or (_figures(TIMES[len(TIMES) // 4 :]) if len(TIMES) >= 8 else {})
    found["losses"] = [
        loss if loss == loss and abs(loss) != float("inf") else None for loss in SEEN
    ]
    found["backwards"] = len(TIMES)
    path = FILE[0]
    try:
        with open(path + ".part", "w") as file:
            file.write(as_json(found))
        os.replace(path + ".part", path)
    except OSError:
        pass


def _leave():
    """End this process and its workers at once, without the program's own clean-up."""
    end()
    try:
        _signal.signal(
            _signal.SIGCHLD, _signal.SIG_DFL
        )  # torch's handler raises for a killed worker
    except ValueError:
        pass  # not the main thread
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing else ():
        child.kill()
    try:
        sys.stdout.flush()
    except Exception:
        pass
    end_process()
    os._exit(0)
