"""Observe one process: sample its threads, and keep writing the record of what was seen."""

import _thread
import os
import sys
import time
from _functools import partial
from _operator import attrgetter, itemgetter
from itertools import accumulate, chain, repeat

from _hpcncf_probe import (
    STATE,
    apply_remedies,
    cuda_events,
    is_over,
    lines,
    observe,
    pause,
    step_facts,
    tables,
    torch_phases,
    trial_guard,
    trial_speed,
)
from _hpcncf_probe import detach as detach_process
from _hpcncf_probe import end as end_process
from _hpcncf_probe.as_json import as_json
from _hpcncf_probe.lines import current_frames, one_interpreter
from _hpcncf_probe.phases import CLOCKS, NAME, SHORT, UNTIMED, WALL, PhaseClock

FORMAT = 1
# What a launcher says of a process's place: which job, step and task, and the job's cores.
PLACE = (
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_CPUS_ON_NODE",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "LSB_JOBID",
    "PBS_JOBID",
)
SAMPLE_EVERY_S = 0.01
# The sampler's share of one core: samples get rarer where one costs more.
SAMPLER_SHARE = 0.003
# What the sampler may spend at once after the start and after the first step: a program that trains
# for a second only, on a busy machine, would else be seen a handful of times.
SAMPLER_AT_ONCE_S = 0.02
# A gap is booked on the line that is found after it: C code that keeps the interpreter's lock.
LONGEST_GAP_S = 1.0
# A thread waits this long before it asks for the interpreter's lock. With Python's 5 ms, samples
# would fall where C code happens to let go of it. With much less, two threads that share one core
# take it from each other all the time. Set only while no other thread is affected.
ASK_FOR_LOCK_AFTER_S = 2e-5
# Set only with these, whose C code lets go of the lock all the time; elsewhere a program may look.
ARRAYS = frozenset(("numpy", "torch"))
# After one sample in so many of a program without steps, two looks, so far apart, show whether it
# has gone on to another instruction, if it had a core for the least time meanwhile.
MOVES_EVERY = 4
MOVES_AFTER_S = 6e-5
MOVES_LEAST_S = 3e-5
# Moments at which steps and CPU time are noted; every second one is dropped when there are more.
MOST_MOMENTS = 64
THREADS_EVERY_S = 1.0
THREADS_FIRST_S = 0.25
IDLE_SHARE = 0.05
# A worker of a loader sends its batches from a thread of its own.
SENDING_SHARE = 0.5
# A shorter process that took no step leaves no record.
LEAST_S = 1.0
# What was seen since the last record is lost where a process is killed, or leaves by `os._exit` or
# `os.exec*`: at most this share of its life, and at most so many seconds.
FIRST_RECORD_S = 0.5
RECORD_SHARE = 0.25
RECORD_EVERY_S = 15.0
# A worker is often killed at the end.
WORKER_RECORD_S = 2.0
MOST_STACKS = 4000
MOST_FRAMES = 8
MOST_WALKED = 40
MOST_READ = 400
# Of file descriptors: those below are stdin, stdout and stderr.
FIRST_FREE = 3

# Functions of torch that say nothing about what is being done.
PLUMBING = frozenset(
    "__next__ _next_data fetch wrapper _call_impl _wrapped_call_impl __call__ decorate_context "
    "_use_grad _worker_loop <listcomp> <genexpr> <dictcomp> _get_data _try_get_data".split()
)
INLINE = frozenset("<listcomp> <genexpr> <dictcomp> <setcomp> <lambda>".split())
_LIBRARY = ("site-packages", "dist-packages")


# How samples are taken. The sampler is a thread that `threading` does not know, every 10 ms or
# more rarely: 0.3 % of a core. Such a thread gets the interpreter's lock when C code lets go of
# it, and may lose it again before it has read a frame: samples then fall on lines further on (26 %
# of them on one that took 3 %). So it waits, takes the phase and reads all frames in one call of C
# code, an iterator of `itertools` and `operator`; and it has its timer slack set to 1 µs. The
# shares agree with py-spy's, but for lines that let go of the lock nowhere (see `lines`).
#
# A loop without calls lets go of the lock only at the jump that ends its body: samples at such a
# jump are given to the lines of the body in turn, by the number of their operations. Nor does `in`
# let go: if a list, tuple or array of 200 items or more was searched since, the sample is of that
# line. Other long instructions (`list + list`, `==` of lists) are seen at the next call; only
# reading the thread without the lock would show them, which can crash the program.
#
# Computing or interpreting: whether a program without steps makes one array operation after the
# other or is a Python loop, its CPU time does not show, since BLAS's threads spin between short
# calls. So the sampler looks twice: within an operation on large arrays the thread is where it
# was, in a loop it has moved on (0.49 to 1.0 of looks in six such programs of benchmarks/corpus,
# 0.0 to 0.13 in two of arrays).


class Observer:
    """Everything observed in this process; times are in seconds since the process began."""

    def __init__(self):
        self.folder = STATE["folder"]
        self.program = STATE["program"]
        self.kind = "program"
        self.pid = os.getpid()
        self.began = STATE["began"]
        self.started_at = STATE["started_at"]
        self.interval = SAMPLE_EVERY_S
        self.thread, number = STATE["first_thread"]
        self.first_thread = (self.thread, number)
        self.clock_of_first = getattr(time, "pthread_getcpuclockid", lambda _: None)(self.thread)
        clock = CLOCKS[self.thread]
        clock.since, clock.cpu_since = self.began, STATE["began_cpu_s"]
        self.start_up = None
        self.stacks = {}
        self.others = {}
        self.samples = 0
        # Of steps that are not timed and last as long as from one sample to the next, by phase:
        # seconds; of those whose CPU was read CPU seconds, seconds, seconds ready without a core.
        self.long_steps = {}
        self.step_sampled = -2
        self.ran_sampled = None
        self.threads = {}
        # One that is attached to has threads that have run for long.
        self.threads_at_first = read_threads(self.first_thread) if "until" in STATE else {}
        self.numbers = {}
        self.reused = set()
        self.cpu_at_first = STATE["began_process_cpu_s"]
        self.seen_at = self.began
        self.threads_at = self.began
        self.record_at = time.perf_counter() + FIRST_RECORD_S
        # (Phase, what is done) -> pairs of looks at the thread, those between which it went on.
        self.moves = {}
        # (Phase, what is done) -> sampled seconds; moments of the training, with these so far.
        self.sampled = {}
        self.moments = []
        self.moment_every = 1
        # (Phase, what is done, a user's line, the library's function it called) -> seconds.
        self.calls = {}
        self.private_mib = []
        self.blocks = None
        self.thread_environment = step_facts.thread_environment()
        self.others_idle = False
        self.sampler_cpu = 0.0
        self.samples_cpu = 0.0
        self.sampler_may_s = SAMPLER_AT_ONCE_S
        self.torch_threads = None
        self.rank = None
        self.problems = [STATE["problem"]] if STATE["problem"] else []
        self.written = False
        self.sampler = None
        self.usual_switch_s = sys.getswitchinterval()

    # -- the sampler's thread

    def _switch_fast(self, fast):
        now = sys.getswitchinterval()
        if fast and now == self.usual_switch_s:
            sys.setswitchinterval(ASK_FOR_LOCK_AFTER_S)
        elif not fast and abs(now - ASK_FOR_LOCK_AFTER_S) < 1e-6:
            sys.setswitchinterval(self.usual_switch_s)

    def sample(self, stop):
        """Sample the program repeatedly until the lock `stop` is released."""
        try:
            self.sampler = _thread.get_ident()
            self.seen_at = time.perf_counter()
            wake_promptly()
            lines.prepare()
            while True:
                opened, stopped = [], []
                if not self._wait(stop, opened, stopped):
                    break
                if is_over():
                    detach_process()
                    break
                if not opened:  # it was asked anew whether the frames may be read
                    continue
                self._switch_fast(False)
                alone, doing = self._sample(opened[0][NAME], stopped)
                self._switch_fast(alone and not ARRAYS.isdisjoint(sys.modules))
                if doing and self.samples % MOVES_EVERY == 0 and self._see_move(stop, doing):
                    break
        except Exception as error:
            self.problems.append(f"sampler: {type(error).__name__}: {error}")
        finally:
            self._switch_fast(False)

    def _wait(self, stop, opened, stopped):
        """Wait, then record the training thread's phase and frames; return False at the end.

        In one call of C code: between two calls this thread may lose the interpreter's lock, above
        all where cores are short, and the program would be seen further on than it was.
        """
        waited = []
        clock = CLOCKS.get(self.thread)
        phases = repeat(clock.stack if clock is not None else NO_PHASE)
        innermost = map(itemgetter(self.thread), iter(sys._current_frames, None))
        back = map(repeat, BACK, repeat(MOST_READ))
        walks = map(accumulate, map(chain, zip(innermost), back), repeat(getattr))
        look = zip(
            iter(partial(stop.acquire, True, self.interval), True),
            map(waited.append, repeat(True)),
            *one_interpreter(),
            map(opened.append, map(itemgetter(-1), phases)),
            map(stopped.extend, map(map, repeat(READ), walks)),
        )
        try:
            for _ in look:
                return True
        except AttributeError:  # beyond the outermost frame
            return True
        except KeyError:  # the thread has ended, or there are several interpreters
            pass
        if not waited:
            return False
        if current_frames():  # one of the modules has come that make interpreters, and made none
            return True
        self.problems.append("no samples: it may have several interpreters")
        return False

    def _sample(self, phase, stopped):
        began = time.thread_time()
        now = time.perf_counter()
        seen = None
        gap = min(now - self.seen_at, LONGEST_GAP_S)
        self.seen_at = now
        if phase == UNTIMED:
            phase = self._untimed_phase(stopped, gap)
        frames = current_frames()
        frames.pop(self.thread, None)
        others = {}
        if self.samples % 4 == 0:
            others = {
                ident: _stopped_at(frame)
                for ident, frame in frames.items()
                if ident != self.sampler
            }
        frames.pop(self.sampler, None)
        alone = not frames or self.others_idle
        # A sample in a turn of the clock's, whose system call takes the thread's waits for a core,
        # says nothing of the program's lines.
        if stopped and stopped[0][0].co_filename not in TURNS:
            whole = self.kind != "worker"
            doing, stack, library, called = _look(stopped, whole, self.thread)
            self._add(self.stacks, (phase, doing, stack, library), gap)
            seen = phase, doing
            self.sampled[seen] = self.sampled.get(seen, 0.0) + gap
            if called and stack:
                self._add(self.calls, (phase, doing, stack[-1], called), gap)
        for ident, other in others.items():
            _, stack, _, _ = _look(other)
            self._add(self.others, (ident, other[0][0].co_name, stack[-1:]), 4 * gap)
        others = other = frames = None
        self.samples += 1
        soon = now - self.began < 4 * THREADS_EVERY_S
        if now - self.threads_at >= (THREADS_FIRST_S if soon else THREADS_EVERY_S):
            self._see_threads(now)
        self.samples_cpu += time.thread_time() - began
        if now >= self.record_at:
            most = WORKER_RECORD_S if self.kind == "worker" else RECORD_EVERY_S
            since = now - self.began
            self.record_at = now + min(most, RECORD_SHARE * since)
            if since >= LEAST_S or self.start_up is not None:
                self.write(False)
        self.sampler_cpu += time.thread_time() - began
        self.interval = SAMPLE_EVERY_S
        # Records, which get rare by themselves, would leave a short program with few samples.
        if self.samples_cpu > self.sampler_may_s + SAMPLER_SHARE * (now - self.began):
            mean = self.samples_cpu / self.samples
            self.interval = min(0.2, max(SAMPLE_EVERY_S, mean / SAMPLER_SHARE))
        return alone, seen

    def _see_move(self, stop, doing):
        """Record whether the thread has moved on a moment later; return True at the end."""
        at, ran = self._position(), self._ran()
        if stop.acquire(True, MOVES_AFTER_S):
            return True
        after = self._position()
        if ran is not None and self._ran() - ran >= MOVES_LEAST_S:
            moves = self.moves.setdefault(doing, [0, 0])
            moves[0] += 1
            moves[1] += after != at or _is_between_operations(at)
        return False

    def _position(self):
        frame = current_frames().get(self.thread)
        return frame and (frame.f_code, frame.f_lasti)

    def _ran(self):
        try:
            return time.clock_gettime(self.clock_of_first)
        except (OSError, TypeError):  # it has ended; this system has no such clock
            return None

    def _untimed_phase(self, stopped, gap):
        clock = CLOCKS[self.thread]
        phase = torch_phases.phase_by_frames(map(itemgetter(0), stopped), clock)
        before, self.ran_sampled = self.ran_sampled, None
        if clock.step - self.step_sampled <= 1:  # C code that keeps the lock is sampled at its end
            seconds = self.long_steps.setdefault(phase, [0.0, 0.0, 0.0, 0.0])
            seconds[0] += gap
            self.ran_sampled = now = read_thread(self.numbers.get(self.thread))
            if before and now:
                seconds[1] += now[0] - before[0]
                seconds[2] += gap
                seconds[3] += now[1] - before[1]
        self.step_sampled = clock.step
        return phase

    def _see_threads(self, now):
        """Record the threads' CPU time, and whether any thread but the training thread computes."""
        numbers = kernel_numbers(self.first_thread)
        for ident, number in numbers.items():
            if self.numbers.setdefault(ident, number) != number:
                self.reused.add(str(ident))
        self.numbers.update(numbers)
        before, self.threads = self.threads, read_threads(self.first_thread)
        ran = sum(
            figures[0] - before.get(ident, figures)[0]
            for ident, figures in self.threads.items()
            if ident != str(self.thread)
        )
        most = SENDING_SHARE if self.kind == "worker" else IDLE_SHARE
        self.others_idle = bool(before) and ran < most * (now - self.threads_at)
        self.threads_at = now
        self._note_moment(now)
        follow(numbers.get(self.thread))

    def _note_moment(self, now):
        """Record how many steps were taken since the first one, and with how much CPU time."""
        clock = CLOCKS.get(self.thread)
        ran = self.threads.get(str(self.thread))
        if self.start_up is None or clock is None or ran is None:
            return
        steps = clock.steps()
        if self.moments and steps < self.moments[-1][1] + self.moment_every:
            return
        self.moments.append([now - self.began, steps, ran[0], list(self.sampled.items())])
        if len(self.moments) > MOST_MOMENTS:
            del self.moments[1::2]
            self.moment_every = 2 * (self.moments[1][1] - self.moments[0][1])

    @staticmethod
    def _add(table, key, seconds):
        if key not in table and len(table) >= MOST_STACKS:
            key = (*key[:2], (), *("" for _ in key[3:]))
        table[key] = table.get(key, 0.0) + seconds

    # -- the end of the start-up

    def first_step(self, clock):
        """End the start-up at the training thread's first step; later figures are separate."""
        if self.start_up is not None:
            return
        clock.turn()
        self.thread = clock.ident
        self.sampler_may_s += SAMPLER_AT_ONCE_S
        # By the clock's own moment: none is counted twice.
        self.start_up = {"seconds": clock.since - self.began, "stacks": self.stacks}
        self.stacks, self.others, self.long_steps = {}, {}, {}
        self.moves, self.sampled, self.calls, self.moments = {}, {}, {}, []
        step_facts.clear()
        clock.clear()
        clock.turns = clock.backwards = 0
        for loader in torch_phases.LOADERS:
            loader.batches = loader.followed = 0
        self.cpu_at_first = time.process_time()
        self.threads_at_first = read_threads(self.first_thread)
        torch = torch_phases.TORCH.get("torch")
        if torch is not None:
            self.torch_threads = torch.get_num_threads()
        self.rank = torch_phases.rank()

    # -- the record

    def write(self, final):
        """Write the record atomically; after a failure the program goes on without a record."""
        if os.getpid() != self.pid:
            return
        if self.kind == "worker":
            self.private_mib.append(step_facts.private_mib())
        try:
            text = as_json(self.record(final))
            # Two nodes may give one number at the same moment.
            name = f"{self.pid}-{int(self.started_at * 1000)}-{os.uname().nodename}.json"
            path = os.path.join(self.folder, name)
            mode = 0o600 | (os.stat(self.folder).st_mode & 0o040)
            made = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            if made < FIRST_FREE:  # a closed stdout, into which the program may yet write
                os.close(made)
                return
            try:
                whole = os.write(made, text.encode()) == len(text)  # else the disk is full
            finally:
                os.close(made)
            if whole:
                os.replace(path + ".part", path)
                self.written = True
            else:
                os.unlink(path + ".part")
        except (OSError, ValueError):
            pass

    def record(self, final):
        clock = CLOCKS.get(self.thread)
        figures = phases(clock)
        now = time.perf_counter()  # afterwards: this thread may wait for a core at any line
        threads = {
            ident: [*figures, *self.threads_at_first.get(ident, (0.0, 0.0))]
            for ident, figures in self.threads.items()
        }
        return {
            "format": FORMAT,
            "final": final,
            "node": os.uname().nodename,
            "place": {name: os.environ[name] for name in PLACE if name in os.environ},
            "started_at": self.started_at,
            "spent_s": os.times()[:2],
            "memory_peak_mib": memory_peak_mib(),
            "kind": self.kind,
            "pid": self.pid,
            "program": self.program,
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": torch_phases.TORCH.get("version"),
            "elapsed_s": now - self.began,
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "rank": self.rank or torch_phases.rank(),
            "torch_threads": self.torch_threads,
            "start_up": self.start_up
            and {**self.start_up, "stacks": listed(self.start_up["stacks"])},
            "since_cpu_s": time.process_time() - self.cpu_at_first,
            "steps": clock.steps() if clock else 0,
            "phases": figures,
            "short_steps": short_steps(clock),
            "long_steps": dict(self.long_steps),
            "loaders": [each.record() for each in torch_phases.LOADERS],
            "no_grad": [each.record() for each in torch_phases.NO_GRAD],
            "moves": [sum(each) for each in zip(*self.moves.values())] or [0, 0],
            "moves_in": [[*seen, *moves] for seen, moves in list(self.moves.items())],
            "moments": [
                [*figures, [[*seen, seconds] for seen, seconds in sampled]]
                for *figures, sampled in list(self.moments)
            ],
            "calls": [
                [phase, doing, list(line), called, seconds]
                for (phase, doing, line, called), seconds in list(self.calls.items())
            ],
            "graphs": list(step_facts.LOOKS),
            "backwards": clock.backwards if clock else 0,
            "options": sorted(step_facts.OPTIONS),
            "thread_environment": [self.thread_environment, step_facts.thread_environment()],
            "blocks": self.blocks,
            "private_mib": [each for each in self.private_mib if each is not None],
            "stacks": listed(self.stacks),
            "others": [
                [str(ident), name, [list(each) for each in stack], seconds]
                for (ident, name, stack), seconds in list(self.others.items())
            ],
            "main_thread": str(self.thread),
            "threads": threads,
            "reused": sorted(self.reused),
            "tables": [each for each in list(tables.SEEN.values()) if each],
            "gpu": cuda_events.SECONDS if cuda_events.SECONDS["steps"] else None,
            "sampler": [self.samples, self.sampler_cpu],
            "remedies": apply_remedies.record(),
            "problems": self.problems,
        }


def memory_peak_mib():
    """Return the process's peak resident memory in MiB; None if the kernel does not report it."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) / 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def wake_promptly():
    """Set this thread's timer slack to one microsecond, so that its waits end on time.

    The default of Linux is 50 microseconds.
    """
    try:
        with open(f"/proc/{_thread.get_native_id()}/timerslack_ns", "w") as file:
            file.write("1000")
    except (OSError, AttributeError):
        pass


def follow(number):
    """Move this thread to the core on which thread `number` (the kernel's number) ran last.

    Asking for the interpreter's lock takes two short sleeps. A core that is idle meanwhile wakes up
    late, by some 0.2 ms: samples then fall where C code lets go of the lock.
    """
    try:
        with open(f"/proc/self/task/{number}/stat", "rb") as file:
            core = int(file.read().rpartition(b")")[2].split()[36])
        os.sched_setaffinity(_thread.get_native_id(), {core})
    except (OSError, AttributeError, ValueError, IndexError):
        pass


def phases(clock):
    """Return the time of each phase up to now, including what the open phase has taken so far.

    Phase -> [seconds, CPU seconds, seconds in which CPU time was measured, times entered].
    """
    if clock is None:
        return {}
    # The program goes on meanwhile: what is open, and since when, first.
    opened, since = clock.stack[-1][NAME], clock.since
    figures = {name: phase[:SHORT] for name, phase in list(clock.phases.items())}
    figures[opened][WALL] += time.perf_counter() - since
    return {name: phase for name, phase in figures.items() if phase[WALL]}


def short_steps(clock):
    """Return the seconds of each phase within the timed short steps, which represent the others."""
    if clock is None:
        return {}
    return {name: phase[SHORT] for name, phase in list(clock.phases.items()) if phase[SHORT]}


def listed(stacks):
    """Convert stacks to [phase, what torch or the import does, user's frames, library, seconds]."""
    return [
        [phase, doing, [list(each) for each in stack], library, seconds]
        for (phase, doing, stack, library), seconds in list(stacks.items())
    ]


# The files of the clock and of its turns.
TURNS = frozenset((PhaseClock.turn.__code__.co_filename, torch_phases.install.__code__.co_filename))
# Of a frame: what is read, and the way to the one around it.
READ = attrgetter("f_code", "f_lineno", "f_lasti", "f_globals")
BACK = repeat("f_back")
NO_PHASE = ((0.0, 0.0, 0.0, 0, "rest:-"),)


def _stopped_at(frame):
    """Read code, line, instruction and globals of a thread's frames, the innermost first."""
    found = []
    try:
        found.extend(map(READ, accumulate(chain((frame,), repeat("f_back", MOST_READ)), getattr)))
    except AttributeError:  # beyond the outermost
        pass
    return found


def _look(frames, whole=True, thread=None):
    """Interpret a thread's frames: what is done, in which user lines, in which library.

    Returns what is done, the user's frames inside the phase (outermost first), the library function
    if there are no such frames, and the function that the innermost user frame called. A frame is
    (file, line, function). The frames of the training loop would take the blame for a loader's
    work: they are kept only if there are no others and `whole` is true. `thread` is the ident of
    the thread.
    """
    doing, stack, library, last, called = "", [], "", None, ""
    inner = None  # a comprehension or lambda, which belongs to the function around it
    for depth, (code, line, at, variables) in enumerate(frames):
        name = code.co_filename
        began = depth == 1 and lines.has_begun(frames[0][0], frames[0][2])
        if (depth == 0 or began) and is_user(name, variables):
            line = lines.worked_on(code, at, thread) or line
        line = line or lines.before(code, at)
        if "_hpcncf_probe" in name:
            if stack or inner or not whole:
                break
            library = library or last or ""
        elif name.startswith("<frozen importlib"):
            doing = "import"
        elif is_user(name, variables):
            if not stack and inner is None:
                called = last or ""
            if inner is not None:
                if inner[:2] != (name, line):
                    own = code.co_name if inner[2] != "<lambda>" and inner[0] == name else inner[2]
                    stack.append((inner[0], inner[1], own))
                inner = None
            if code.co_name in INLINE:
                inner = (name, line, code.co_name)
            elif len(stack) < MOST_WALKED:
                stack.append((name, line, code.co_name))
            # Tensors at work in a function of that name; a library in it does something else.
            named = "forward" in code.co_name or "loss" in code.co_name
            if named and not doing and (not called or called.startswith("torch ")):
                doing = "forward"
        elif doing != "import":
            in_module = code.co_name == "_call_impl" and name.endswith("module.py")
            if code.co_name == "zero_grad" and not stack and not inner:
                doing = "optimizer"
            elif code.co_name == "__deepcopy__":
                doing = "copy"  # of a tensor or Parameter: no part of a step
            at_work = not doing and not stack and not inner
            if in_module or (at_work and _computes(name, code.co_name)):
                doing = "forward"
            if not stack and not inner and (last is None or code.co_name not in PLUMBING):
                last = library_name(name, code.co_name)
    if inner is not None:
        stack.append(inner)
    library = library or ("" if stack else last or "")
    return doing, tuple(reversed(stack[:MOST_FRAMES])), library, called


_KNOWN = {}


def is_user(name, variables):
    """Return whether code is the user's: not of the standard library or an installed package."""
    known = _KNOWN.get(name)
    if known is None:
        if name.startswith("<"):
            known = name in ("<string>", "<stdin>") or name.startswith("<ipython")
        else:
            known = not (
                any(part in name for part in _LIBRARY)
                or name.startswith((*_STANDARD, OWN))
                or (os.sep not in name and not name.endswith((".py", ".ipynb")))
            )
        if len(_KNOWN) < 100_000:
            _KNOWN[name] = known
    if known and name.startswith("<"):
        return variables.get("__name__") == "__main__"
    return known


# hpcncf, whose remedies work in the program. The copy beside a job's records is the probe alone.
OWN = STATE["inside"].rpartition(os.path.join("probe", "inject", ""))[0]
OWN = OWN or os.path.join(os.path.dirname(STATE["inside"]), "")
_STANDARD = (os.path.dirname(os.__file__) + os.sep,)


def _computes(name, function):
    """Return whether a function of torch computes, unlike one that lists a module's state."""
    if f"{os.sep}torch{os.sep}" not in name:
        return False
    if name.endswith(("functional.py", "_tensor.py", "_ops.py", "eval_frame.py")):
        return not function.startswith("__deepcopy")
    return f"{os.sep}nn{os.sep}" in name and function in ("forward", "__call__")


def library_name(path, function):
    """Name a library's function by its package, as in `torch default_collate`."""
    if function.startswith("<"):  # a comprehension, or the module's own lines
        function = os.path.basename(path).removesuffix(".py")
    for part in _LIBRARY:
        at = path.find(part + os.sep)
        if at >= 0:
            package = path[at + len(part) + 1 :].split(os.sep)[0]
            return f"{package.removesuffix('.py')} {function}"
    if path.startswith(OWN):
        return f"hpcncf {function}"
    return f"{os.path.basename(path).removesuffix('.py')} {function}"


def _is_between_operations(position):
    """Return whether a thread was stopped at a loop's end or a function's begin.

    There it releases the GIL if another thread has asked for it.
    """
    import opcode

    if position is None:
        return False
    code, at = position
    return opcode.opname[code.co_code[at]].startswith(("JUMP", "POP_JUMP", "RESUME"))


def kernel_numbers(first):
    """Map the ident of each Python thread to the kernel's number for it.

    `first` is both numbers of the process's first thread. It is known even without `threading`,
    which, in a forked process, may still have the parent's number.
    """
    threading = sys.modules.get("threading")
    active = {} if threading is None else dict(getattr(threading, "_active", {}))
    known = {ident: getattr(each, "native_id", None) for ident, each in active.items()}
    known.update([first])
    return {ident: number for ident, number in known.items() if number is not None}


def read_threads(first):
    """Map each Python thread's ident to its CPU seconds and its seconds ready without a core."""
    read = {str(ident): read_thread(number) for ident, number in kernel_numbers(first).items()}
    return {ident: figures for ident, figures in read.items() if figures}


def read_thread(number):
    try:
        with open(f"/proc/self/task/{number}/schedstat", "rb") as file:
            ran, waited = file.read().split()[:2]
    except (OSError, ValueError):
        return None
    return [int(ran) / 1e9, int(waited) / 1e9]


# Module -> what is done with it once torch is imported. `import torch` brings the others; where it
# does not, they are observed when they come.
IMPORTED = {
    "torch": (
        torch_phases.install,
        apply_remedies.install,
        trial_speed.install,
        trial_guard.install,
    ),
    "torch._dynamo.eval_frame": (torch_phases.observe_tracing,),
    "torch.utils.data.dataloader": (torch_phases.observe_loaders, apply_remedies.install_loaders),
    "torch.distributed.distributed_c10d": (torch_phases.observe_collectives,),
}
# What has been imported and is not observed yet, by this process or the one it was forked from.
_COMPLETE = {}
_BEGUN = []


def begin():
    """Create and start the observer of this process."""
    observer = Observer()
    if not _BEGUN:
        _BEGUN.append(True)
        torch_phases.first_step = first_step
        torch_phases.begin_worker, torch_phases.end_worker = begin_worker, end_worker
        apply_remedies.ask(os.environ.get("HPCNCF_WITH"))
        trial_speed.begin(os.environ.get("HPCNCF_TRIAL"))
    return observer


def imported(name, module):
    """Start to observe a module of torch listed in IMPORTED, now that it has been imported."""
    _COMPLETE[name] = module
    if name == "torch" or "torch" in torch_phases.TORCH:
        for each in [each for each in IMPORTED if each in _COMPLETE]:
            _call_each(IMPORTED[each], _COMPLETE.pop(each))


def _call_each(calls, module):
    for call in calls:
        try:
            call(module)
        except Exception as error:
            STATE["observer"].problems.append(f"{type(error).__name__}: {error}")


def first_step(clock):
    """Tell this process's observer that the training thread has taken its first step."""
    observer = observe()
    if STATE["is_child"] and observer.start_up is None:
        _end_with_multiprocessing()
    observer.first_step(clock)


def _end_with_multiprocessing():
    """Have a forked process that trains write its record at its end.

    Children of multiprocessing leave by `os._exit`, which does not run `atexit`.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, end_process, exitpriority=0)


def forget():
    """Discard, in a forked child, everything that was observed in its parent."""
    if "until" in STATE:  # only a worker is looked at, and only it has a thread to take more out
        torch_phases.remove(keep_workers=True)
    CLOCKS.clear()
    apply_remedies.NOTES.clear()
    apply_remedies.ROWS.clear()
    trial_speed.FILE.clear()
    tables.SEEN.clear()
    step_facts.clear()
    torch_phases.LOADERS.clear()
    torch_phases.NO_GRAD.clear()


def begin_worker():
    """Mark this process as a DataLoader's worker; a spawned one is observed already."""
    observer = observe()
    observer.kind = "worker"
    observer.private_mib.append(step_facts.private_mib())
    observer.blocks = getattr(sys, "getallocatedblocks", int)()


def end_worker():
    """Write the record of this DataLoader worker, which leaves by `os._exit` without `atexit`."""
    pause()
    end()


def detach():
    """Remove the probe's changes from the running program, and write what was observed."""
    torch_phases.remove()
    observer = STATE["observer"]
    clock = CLOCKS.get(observer.thread) if observer is not None else None
    ran = observer._ran() if clock is not None else None
    if ran is not None and observer.thread == observer.first_thread[0] and not clock.backwards:
        clock.add_open(ran)
    end()


def end():
    """Write the final record of this process."""
    observer, STATE["observer"] = STATE["observer"], None
    if observer is None or observer.pid != os.getpid():
        return
    trial_speed.end()
    long = time.perf_counter() - observer.began >= LEAST_S
    trained = observer.start_up is not None
    if long or trained or observer.written or (apply_remedies.ASKED and observer.kind == "program"):
        clock = CLOCKS.get(observer.thread)
        if clock is not None and clock.ident == _thread.get_ident():
            clock.turn()
        # A pool's threads have ended by now: they stay as they were last seen.
        observer.threads.update(read_threads(observer.first_thread))
        observer.write(True)
