"""The places in torch where a phase begins and ends.

No module hook and no replaced `Module.__call__`: they change results (pytorch #149502) and break
graphs. A function that is being compiled goes straight to the original.
"""

import functools
import os
import sys
from _thread import get_ident

from _hpcncf_probe import cuda_events, tables
from _hpcncf_probe.phases import CLOCKS, NAME, Clock, hide_frames, optimizer_number

LOADERS = []
NO_GRAD = []
TORCH = {}
_NO_GRAD_SITES = {}
# Of one thread's optimizer: steps made, and the depth of the one that is open.
MADE, DEPTH = range(2)
IN_TORCH = f"{os.sep}torch{os.sep}"
IN_REMEDIES = os.sep.join(("", "hpcncf", "remedies", ""))
# By whose frames the phase of a step that is not timed is known: the file, and functions' code.
OPTIMIZER = os.path.join("torch", "optim", "optimizer.py")
ADVANCE, WRAPPED = [None], [None]
# Whether the program has asked for compiled functions: else torch need not be asked in each call.
TRACED = False


class Loader:
    """What is known of one data set's loader."""

    def __init__(self, number, loader):
        self.number = number
        self.input = f"input:{number}"
        self.rest = f"rest:{number}"
        self.iterators = self.batches = self.followed = 0
        self.open = False
        self.workers = getattr(loader, "num_workers", 0)
        self.persistent = bool(getattr(loader, "persistent_workers", False))
        self.pinned = bool(getattr(loader, "pin_memory", False))
        self.dataset = type(getattr(loader, "dataset", None)).__name__
        self.batch_size = getattr(loader, "batch_size", None)
        if self.batch_size is None:
            sampler = getattr(loader, "batch_sampler", None)
            size = getattr(sampler, "batch_size", None)
            self.batch_size = size if isinstance(size, int) else None

    def record(self):
        names = "workers persistent pinned dataset batch_size iterators batches followed".split()
        return {name: getattr(self, name) for name in names}


class NoGradSite:
    """A place that enters `no_grad`: an evaluation, or part of every step."""

    def __init__(self, number, code, line):
        self.phase = f"no_grad:{number}"
        self.code, self.line = code, line
        self.count = self.steps = 0
        self.step = -1

    def record(self):
        place = [self.code.co_filename, self.line, self.code.co_name]
        return {"place": place, "count": self.count, "steps": self.steps}


def install(torch):
    """Put the probe's turns into a torch that has just been imported."""
    TORCH["torch"] = torch
    TORCH["version"] = str(torch.__version__)
    compiling = _compiling(torch)
    _wrap(torch.autograd, "backward", "backward", compiling, begin=_begin_backward)
    _wrap(torch.autograd, "grad", "backward", compiling)
    _wrap(torch, "save", "checkpoint", compiling)
    _observe_optimizers(sys.modules["torch.optim.optimizer"], compiling)
    for kind in ("no_grad", "inference_mode"):
        _observe_no_grad(getattr(torch, kind))


def _compiling(torch):
    compiler = getattr(torch, "compiler", None)
    return getattr(compiler, "is_compiling", None) or (lambda: False)


def observe_tracing(module):
    """`module` is torch._dynamo.eval_frame, which an optimizer imports, compiled or not."""
    global TRACED
    kind = getattr(module, "OptimizeContext", None)
    if kind is None:
        TRACED = True
        return
    begin = kind.__init__

    @functools.wraps(begin)
    def noted(*args, **kwargs):
        global TRACED
        TRACED = True
        begin(*args, **kwargs)

    kind.__init__ = noted


def _wrap(holder, name, phase, compiling, begin=Clock.push):
    """`begin` opens the phase, and gives its depth; None: this call is not timed."""
    original = getattr(holder, name, None)
    if original is None or hasattr(original, "_hpcncf_original"):
        return

    @functools.wraps(original)
    def timed(*args, **kwargs):
        try:  # Ctrl-C, too, raises its error wherever it finds this thread
            if TRACED and compiling():
                return original(*args, **kwargs)
            clock = CLOCKS[get_ident()]
            depth = begin(clock, phase)
            if depth is None:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                clock.pop(depth)
        except BaseException as error:
            hide_frames(error)
            raise

    WRAPPED[0] = timed.__code__
    timed._hpcncf_original = original
    setattr(holder, name, timed)


def _begin_backward(clock, phase):
    clock.backwards += 1
    if not clock.timed:
        return None
    depth = clock.push(phase)
    loader = clock.loader
    if loader is not None and loader.open:
        loader.open = False
        loader.followed += 1
    if not clock.optimizes:
        # Perhaps the program updates its parameters by hand: a second pass says so.
        clock.end_step()
        if clock.backwards == 2:
            first_step(clock)
    return depth


def first_step(clock):
    """Replaced by the observer: the start-up is over."""


def _observe_optimizers(module, compiling):
    look_at = tables.AT_STEPS
    built_for = getattr(TORCH["torch"], "version", None)
    has_gpu = any(getattr(built_for, each, None) for each in ("cuda", "hip"))

    def before(optimizer, args, kwargs):
        if TRACED and compiling():
            return None
        clock = CLOCKS[get_ident()]
        closure = kwargs or len(args) > 1
        if not clock.timed:
            if not closure:
                return None
            clock.time_on()
        number = optimizer_number(optimizer)
        steps = clock.optimizers.get(number)
        if steps is None:
            steps = clock.optimizers[number] = [0, None]
        if steps[DEPTH] is not None:  # the last step ended by an error
            clock.pop(steps[DEPTH])
        steps[DEPTH] = clock.push("optimizer")
        if steps[MADE] in look_at:
            depth = clock.push("probe")
            tables.look(TORCH["torch"], optimizer)
            clock.pop(depth)
        return _time_closure(clock, args, kwargs) if closure else None

    def after(optimizer, *_):
        if TRACED and compiling():
            return
        clock = CLOCKS[get_ident()]
        if clock.timed:
            steps = clock.optimizers.get(optimizer_number(optimizer))
            if steps is None or steps[DEPTH] is None:
                return
            clock.pop(steps[DEPTH])
            steps[MADE] += 1
            steps[DEPTH] = None
        clock.end_optimizer_step(optimizer)
        if has_gpu and clock.step % cuda_events.EVERY < 2:
            clock.turn()
            cuda_events.end_step(clock, TORCH["torch"])
        if not clock.optimizes:
            clock.optimizes = True
            clock.time_on()  # from the backward pass to here was no step
            first_step(clock)

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _time_closure(clock, args, kwargs):
    """Forward and backward inside `step(closure)` are no time of the optimizer."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure):
        return None

    @functools.wraps(closure)
    def timed(*inner, **named):
        try:
            depth = clock.push(clock.base[NAME])
            try:
                return closure(*inner, **named)
            finally:
                clock.pop(depth)
        except BaseException as error:
            hide_frames(error)
            raise

    if len(args) > 1:
        return (args[0], timed, *args[2:]), kwargs
    return args, {**kwargs, "closure": timed}


def _observe_no_grad(kind):
    enter, leave = kind.__enter__, kind.__exit__

    @functools.wraps(enter)
    def timed_enter(self):
        result = enter(self)
        clock = CLOCKS.get(get_ident())
        if clock is not None and len(clock.stack) == 1:
            frame = sys._getframe(1)
            name = frame.f_code.co_filename
            if IN_TORCH in name and not name.endswith("_contextlib.py"):  # where it decorates
                return result  # torch's own, as in a deep copy: no evaluation
            if not clock.timed and _in_optimizer(frame):
                return result
            site = _site(frame)
            if site is None:
                return result
            site.count += 1
            if site.step != clock.step:
                site.step = clock.step
                site.steps += 1
            self._hpcncf_depth = clock.push(site.phase)
        return result

    @functools.wraps(leave)
    def timed_leave(self, *error):
        try:
            depth = self.__dict__.pop("_hpcncf_depth", None)
            if depth is not None:
                CLOCKS[get_ident()].pop(depth)
        finally:
            result = leave(self, *error)
        return result

    kind.__enter__, kind.__exit__ = timed_enter, timed_leave


def _site(frame):
    """None for a remedy, as it brings its rows up to date: that is no evaluation."""
    while frame.f_back is not None and IN_TORCH in frame.f_code.co_filename:
        frame = frame.f_back
    code, line = frame.f_code, frame.f_lineno
    if IN_REMEDIES in code.co_filename:
        return None
    site = _NO_GRAD_SITES.get((id(code), line))  # by id: a code object's hash reads all of it
    if site is None:
        site = _NO_GRAD_SITES[id(code), line] = NoGradSite(len(NO_GRAD), code, line)
        NO_GRAD.append(site)
    return site


def observe_loaders(module):
    """`module` is torch.utils.data.dataloader."""
    _observe_iterators(module._BaseDataLoaderIter)
    several = module._MultiProcessingDataLoaderIter
    _wrap(several, "__init__", "workers_start", lambda: False)
    _wrap(several, "_shutdown_workers", "workers_stop", lambda: False)
    _observe_workers(module._utils.worker)


def _observe_iterators(kind):
    begin, advance = kind.__init__, kind.__next__
    known = {}

    @functools.wraps(begin)
    def timed_begin(self, loader, *args, **kwargs):
        key = (id(getattr(loader, "dataset", None)), getattr(loader, "batch_size", None))
        if key not in known:
            known[key] = Loader(len(LOADERS), loader)
            LOADERS.append(known[key])
        self._hpcncf_loader = known[key]
        known[key].iterators += 1
        CLOCKS[get_ident()].time_on()
        begin(self, loader, *args, **kwargs)

    @functools.wraps(advance)
    def timed_advance(self):
        try:
            clock = CLOCKS[get_ident()]
            try:
                loader = self._hpcncf_loader
            except AttributeError:
                return advance(self)
            if not clock.timed:
                batch = advance(self)
                loader.batches += 1
                loader.followed += 1
                return batch
            depth = clock.push(loader.input)
            try:
                batch = advance(self)
            finally:
                clock.pop(depth)
            if clock.loader is not loader:
                clock.loader = loader
                clock.set_base(loader.rest)
            loader.open = True
            loader.batches += 1
            return batch
        except StopIteration:
            clock.loader = None
            clock.set_base("rest:-")
            raise
        except BaseException as error:
            hide_frames(error)
            raise

    ADVANCE[0] = timed_advance.__code__
    kind.__init__, kind.__next__ = timed_begin, timed_advance
    # `next` is `__next__` under its old name.
    if getattr(kind, "next", None) is advance:
        kind.next = timed_advance


def _observe_workers(module):
    loop = module._worker_loop

    @functools.wraps(loop)
    def observed(*args, **kwargs):
        # (dataset_kind, dataset, index_queue, data_queue, done_event, auto_collation, collate_fn,
        # drop_last, base_seed, init_fn, worker_id, ...): one worker of a loader is looked at.
        observer = sys.modules["_hpcncf_probe.observer"]
        number = args[10] if len(args) > 10 else kwargs.get("worker_id")
        if number == 0:
            observer.begin_worker()
        try:
            return loop(*args, **kwargs)
        finally:
            if number == 0:
                observer.end()

    module._worker_loop = observed


def phase_by_frames(codes, clock):
    """The phase of a step that is not timed, by the code of the frames, the innermost first."""
    for code in codes:
        if code is ADVANCE[0] and clock.loader is not None:
            return clock.loader.input
        if code is WRAPPED[0]:  # of these, only a backward pass leaves a step untimed
            return "backward"
        if _is_optimizer(code):
            return "optimizer"
    return clock.base[NAME]


def _is_optimizer(code):
    """Whether this is what torch puts around each optimizer's step."""
    return code.co_name == "wrapper" and code.co_filename.endswith(OPTIMIZER)


def _in_optimizer(frame):
    """Whether an optimizer's step, perhaps decorated, or its hook is this frame."""
    for _ in range(3):
        if frame is None:
            return False
        if _is_optimizer(frame.f_code):
            return True
        frame = frame.f_back
    return False


COLLECTIVES = (
    "all_reduce all_gather all_gather_object all_gather_into_tensor all_to_all all_to_all_single "
    "barrier monitored_barrier broadcast broadcast_object_list gather gather_object recv reduce "
    "reduce_scatter reduce_scatter_tensor scatter scatter_object_list send"
).split()


def observe_collectives(module):
    """`module` is torch.distributed.distributed_c10d."""
    compiling = _compiling(sys.modules.get("torch"))
    package = sys.modules.get("torch.distributed")
    for name in COLLECTIVES:
        original = getattr(module, name, None)
        if original is None:
            continue
        _wrap(module, name, "sync", compiling)
        if getattr(package, name, None) is original:
            setattr(package, name, getattr(module, name))


def rank():
    """(rank, ranks) of the process group, if the program made one."""
    module = sys.modules.get("torch.distributed")
    try:
        if module is not None and module.is_available() and module.is_initialized():
            return module.get_rank(), module.get_world_size()
    except Exception:
        pass
    return None
