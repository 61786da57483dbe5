"""Exclusive time of each phase, for every thread that has phases."""

import sys
import time
from _thread import get_ident

# In steps shorter than this, the CPU clock (a system call) is read in one step of MANY only.
SHORT_STEP_S = 0.003
MANY = 16


class Clock:
    """One thread's phases: seconds elapsed, and CPU seconds where they were read.

    The base, when no phase is open, is `rest:K`, by the loader whose batch is being worked on.
    """

    __slots__ = (
        "backwards",
        "base",
        "batches",
        "counts",
        "cpu",
        "cpu_since",
        "ident",
        "last_step",
        "loader",
        "measured",
        "optimizers",
        "reads_cpu",
        "samples",
        "since",
        "stack",
        "step",
        "wall",
    )

    def __init__(self):
        self.ident = get_ident()
        self.stack = []
        self.base = "rest:-"
        self.loader = None
        self.step = 0
        self.last_step = None
        self.reads_cpu = True
        self.optimizers = {}
        self.backwards = self.batches = self.samples = 0
        self.clear()
        self.since = time.perf_counter()
        self.cpu_since = time.thread_time()

    def clear(self):
        self.wall = {}
        self.cpu = {}
        self.measured = {}
        self.counts = {}

    def turn(self):
        """Close the present interval: its time belongs to the phase on top."""
        now = time.perf_counter()
        name = self.stack[-1] if self.stack else self.base
        seconds = now - self.since
        self.since = now
        wall = self.wall
        wall[name] = wall.get(name, 0.0) + seconds
        if self.reads_cpu:
            cpu_now = time.thread_time()
            cpu = self.cpu
            cpu[name] = cpu.get(name, 0.0) + cpu_now - self.cpu_since
            self.cpu_since = cpu_now
            measured = self.measured
            measured[name] = measured.get(name, 0.0) + seconds

    def push(self, name):
        """Open a phase; the depth to hand to `pop`."""
        self.turn()
        stack = self.stack
        depth = len(stack)
        stack.append(name)
        self.counts[name] = self.counts.get(name, 0) + 1
        return depth

    def pop(self, depth):
        """Close the phase that was opened at this depth, and whatever an error left open in it."""
        self.turn()
        del self.stack[depth:]

    def end_step(self):
        """One step is over: choose whether the CPU clock is read in the next."""
        now = self.since
        self.step += 1
        if self.last_step is not None:
            short = now - self.last_step < SHORT_STEP_S
            reads = not short or self.step % MANY == 0
            if reads and not self.reads_cpu:
                self.cpu_since = time.thread_time()
            self.reads_cpu = reads
        self.last_step = now

    def steps(self):
        """Steps of the optimizer that made most; backward passes where there is no optimizer."""
        return max(self.optimizers.values()) if self.optimizers else self.backwards


class Clocks(dict):
    """Thread ident -> Clock, made when first asked for."""

    def __missing__(self, ident):
        clock = self[ident] = Clock()
        return clock


CLOCKS = Clocks()


def hide_frames(error):
    """Have the traceback of an uncaught error shown without the probe's own frames."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_without_ours
    return error


def _show_without_ours(kind, value, trace):
    sys.excepthook = sys.__excepthook__
    try:
        seen, error = set(), value
        todo = [value]
        while todo:
            error = todo.pop()
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            error.__traceback__ = _without_ours(error.__traceback__)
            todo += [error.__cause__, error.__context__]
        trace = value.__traceback__
    except Exception:
        pass
    sys.__excepthook__(kind, value, trace)


def _without_ours(trace):
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    at = trace
    while at is not None:
        while at.tb_next is not None and _is_ours(at.tb_next):
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    return trace


def _is_ours(trace):
    return "_hpcncf_probe" in trace.tb_frame.f_code.co_filename
