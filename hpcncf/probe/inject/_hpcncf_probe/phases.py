"""Exclusive time of each phase, for every thread that has phases."""

import sys
from itertools import groupby
from time import perf_counter, thread_time

# Of steps shorter than this, one of EVERY is timed: the probe's code is cold in each step, and
# costs more than its instructions. A prime, so that what a program does in each tenth step is seen
# as often as the rest.
SHORT_STEP_S = 0.02
EVERY = 13
# Of these, one of CPU_EVERY reads the CPU clock, too: a system call, at which the kernel gives the
# core to others. It would be the place of all waits for a core, so the others count for the shares.
CPU_EVERY = 4
# The phase of the steps between; the record shares it out.
UNTIMED = "untimed"

WALL, CPU, MEASURED, ENTERED, SHORT, BEFORE, NAME = range(7)


class PhaseTimes(dict):
    """Accumulated times of each phase of one thread: name -> list.

    The list's items are at WALL, CPU, MEASURED (seconds in which CPU time was read), ENTERED, SHORT
    (seconds of short steps), BEFORE (WALL when the present step began) and NAME.
    """

    def __missing__(self, name):
        phase = self[name] = [0.0, 0.0, 0.0, 0, 0.0, 0.0, name]
        return phase


class PhaseClock:
    """Times the phases of one thread, such as input, forward, backward and optimizer.

    The base, when no phase is open, is `rest:K`, by the loader whose batch is being worked on.
    """

    __slots__ = (
        "backwards",
        "base",
        "cpu_since",
        "ident",
        "last_step",
        "loader",
        "optimizers",
        "optimizes",
        "phases",
        "reads_cpu",
        "since",
        "single",
        "stack",
        "step",
        "stepped",
        "timed",
        "turns",
    )

    def __init__(self, ident):
        self.ident = ident
        self.phases = PhaseTimes()
        self.base = self.phases["rest:-"]
        self.stack = [self.base]
        self.loader = None
        self.step = 0
        self.last_step = None
        self.timed, self.single, self.reads_cpu = True, False, True
        self.optimizers = {}
        self.optimizes = False
        self.turns = 0
        self.stepped = set()
        self.backwards = 0
        self.since = perf_counter()
        self.cpu_since = thread_time()

    def clear(self):
        """Set all sums to zero; phases that are open stay open."""
        for phase in self.phases.values():
            phase[:NAME] = 0.0, 0.0, 0.0, 0, 0.0, 0.0

    def turn(self):
        """Close the present interval, and add its time to the phase on top of the stack."""
        now = perf_counter()
        phase = self.stack[-1]
        seconds = now - self.since
        self.since = now
        phase[WALL] += seconds
        if self.reads_cpu:
            cpu_now = thread_time()
            phase[CPU] += cpu_now - self.cpu_since
            self.cpu_since = cpu_now
            phase[MEASURED] += seconds

    def add_open(self, cpu_now):
        """Close the present interval as `turn` does, but called from another thread.

        `cpu_now`: the CPU time of the clock's thread.
        """
        now = perf_counter()
        phase = self.stack[-1]
        phase[WALL] += now - self.since
        phase[CPU] += cpu_now - self.cpu_since
        phase[MEASURED] += now - self.since
        self.since, self.cpu_since = now, cpu_now

    def push(self, name):
        """Open a phase; return the depth with which `pop` closes it."""
        self.turn()
        phase = self.phases[name]
        phase[ENTERED] += 1
        self.stack.append(phase)
        return len(self.stack) - 1

    def pop(self, depth):
        """Close the phase that was opened at this depth, and whatever an error left open in it."""
        self.turn()
        del self.stack[depth:]

    def set_base(self, name):
        self.base = self.phases[name]
        self.time_on()
        self.stack[0] = self.base

    def time_on(self):
        """Time all phases from now on: what comes is not one of many short, equal steps."""
        if not self.timed:
            self._resume()
        self._read_cpu(True)
        self.last_step = None

    def _resume(self):
        self.turn()
        self.stack[0] = self.base
        self.timed = True

    def _read_cpu(self, reads):
        if reads and not self.reads_cpu:
            self.cpu_since = thread_time()
        self.reads_cpu = reads

    def _begin_step(self):
        self.last_step = self.since
        for phase in self.phases.values():
            phase[BEFORE] = phase[WALL]

    def end_step(self):
        """End the present step, and decide whether the next one is timed."""
        self.step += 1
        if not self.timed:
            if not self.step % EVERY:
                self._resume()
                self._read_cpu(self.step // EVERY % CPU_EVERY == 0)
                self._begin_step()
            return
        last = self.last_step
        if last is None or self.since - last >= SHORT_STEP_S or len(self.stack) > 1:
            self._read_cpu(True)
            self._begin_step()
            return
        if not self.reads_cpu:
            for phase in self.phases.values():
                phase[SHORT] += phase[WALL] - phase[BEFORE]
        self.turn()
        self.reads_cpu = False
        self.stack[0] = self.phases[UNTIMED]
        self.timed, self.single = False, len(self.optimizers) == 1

    def end_optimizer_step(self, optimizer):
        """Count a step of this optimizer, and decide whether it begins a new training step.

        Optimizers that take turns, as a GAN's do, make one training step together.
        """
        if self.single and not self.timed and (self.step + 1) % EVERY:  # the usual, in few words
            self.step += 1
            self.turns += 1
            return
        stepped, number = self.stepped, optimizer_number(optimizer)
        if not stepped or number in stepped:
            self.turns += 1
            if len(stepped) != 1:
                stepped.clear()
                stepped.add(number)
        else:
            stepped.add(number)
        self.end_step()

    def steps(self):
        """Return the number of training steps: turns of the optimizers, or else backward passes."""
        return self.turns if self.optimizes else self.backwards


def optimizer_number(optimizer):
    """Identify an optimizer by its first parameter: a program may create one for each step."""
    try:
        return id(optimizer.param_groups[0]["params"][0])
    except (AttributeError, LookupError, TypeError):
        return id(optimizer)


class Clocks(dict):
    """The phase clock of each thread by its ident, created at the first access."""

    def __missing__(self, ident):
        clock = self[ident] = PhaseClock(ident)
        return clock


CLOCKS = Clocks()


def hide_frames(error):
    """Have the traceback of an uncaught error printed without the probe's own frames."""
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
    """Remove the probe's frames from a traceback, and the import system's frames around them.

    Python itself hides the import system's frames, but not with one of the probe's between them.
    """
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    first = None
    for skipped, run in groupby(reversed(frames), _is_of_import):
        run = list(run)
        if skipped and any(map(is_ours, run)):
            continue
        for each in run:
            each.tb_next = first
            first = each
    return first


def is_ours(trace):
    return "_hpcncf_probe" in trace.tb_frame.f_code.co_filename


def _is_of_import(trace):
    return is_ours(trace) or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")
