"""Hooks in torch at which a phase of training begins and ends.

No module hook and no replaced `Module.__call__`: they change results (pytorch #149502) and break
graphs. A function that is being compiled goes straight to the original.
"""

import os
import sys
from _thread import get_ident

from _hpcncf_probe import STATE, cuda_events, step_facts, tables
from _hpcncf_probe.phases import CLOCKS, NAME, PhaseClock, optimizer_number
from _hpcncf_probe.seams import PASSED, hide, observe_calls, restore

LOADERS = []
NO_GRAD = []
TORCH = {}
# Handles of the hooks on optimizers, by which they are removed.
HOOKS = []
_NO_GRAD_SITES = {}
# Of one thread's optimizer: steps made, and the depth of the one that is open.
MADE, DEPTH = range(2)
IN_TORCH = f"{os.sep}torch{os.sep}"
IN_REMEDIES = os.sep.join(("", "hpcncf", "remedies", ""))
# By whose frames the phase of a step that is not timed is known: the file, and functions' code.
OPTIMIZER = os.path.join("torch", "optim", "optimizer.py")
ADVANCE, WRAPPED = [None], [None]
WORKER_LOOP = [None]
# Whether the program has asked for compiled functions: else torch need not be asked in each call.
TRACED = [False]


class WatchedLoader:
    """Facts about the loader of one data set."""

    def __init__(self, number, loader):
        self.number = number
        self.input = f"input:{number}"
        self.rest = f"rest:{number}"
        self.iterators = self.batches = self.followed = self.with_graph = 0
        self.open = self.keeps_graph = False
        self.makes_whole_batches = step_facts.makes_whole_batches(getattr(loader, "dataset", None))
        self.length = batches_of_pass(loader)
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
        names += ["with_graph", "makes_whole_batches", "length"]
        return {name: getattr(self, name) for name in names}


def batches_of_pass(loader):
    """Return the number of batches in one pass over a loader's data; None if it is not known.

    Only samplers of torch's own are asked, which in turn have asked the data set for its length.
    """
    batches = getattr(loader, "batch_sampler", None)
    for sampler in (batches, getattr(batches, "sampler", None)):
        if not (type(sampler).__module__ or "").startswith("torch.utils.data"):
            return None
    try:
        return len(batches)
    except Exception:  # a data set without an end
        return None


class LoaderOfIterator:
    """Stand-in for a DataLoader, with the attributes that its iterator knows."""

    def __init__(self, iterator):
        self.dataset = getattr(iterator, "_dataset", None)
        self.num_workers = getattr(iterator, "_num_workers", 0)
        self.persistent_workers = getattr(iterator, "_persistent_workers", False)
        self.pin_memory = getattr(iterator, "_pin_memory", False)
        self.batch_sampler = getattr(iterator, "_index_sampler", None)
        self.batch_size = getattr(self.batch_sampler, "batch_size", None)


class NoGradSite:
    """A place in the code that enters `no_grad`: an evaluation, or part of every step."""

    def __init__(self, number, code, line):
        self.phase = f"no_grad:{number}"
        self.code, self.line = code, line
        self.count = self.steps = 0
        self.step = -1

    def record(self):
        place = [self.code.co_filename, self.line, self.code.co_name]
        return {"place": place, "count": self.count, "steps": self.steps}


def install(torch):
    """Install the probe's hooks into a torch that has just been imported."""
    TORCH["torch"] = torch
    TORCH["version"] = str(torch.__version__)
    compiling = is_compiling(torch)
    # Both ways into the backward pass; before torch 2.3 there is no function in common.
    engine = getattr(torch.autograd, "_engine_run_backward", None)
    if engine is not None:
        _time_calls(engine, "backward", compiling, begin=_begin_engine)
    else:
        _time_calls(torch.autograd.backward, "backward", compiling, begin=_begin_backward)
        _time_calls(torch.autograd.grad, "backward", compiling)
    _time_calls(torch.save, "checkpoint", compiling)
    _observe_optimizers(sys.modules["torch.optim.optimizer"], compiling)
    for kind in ("no_grad", "inference_mode"):
        _observe_no_grad(getattr(torch, kind))


def is_compiling(torch):
    """Return the function that tells whether torch is compiling a function right now."""
    compiler = getattr(torch, "compiler", None)
    return getattr(compiler, "is_compiling", None) or (lambda: False)


def observe_tracing(module):
    """Keep the compiler off the probe's frames, and see whether it traces any.

    `module` is torch._dynamo.eval_frame. An optimizer imports it even if nothing is compiled.
    """
    skip = getattr(module, "skip_code", None)
    for code in PASSED if skip else ():  # nothing to compile in the probe's own frames
        skip(code)
    kind = getattr(module, "OptimizeContext", None)
    if kind is None:
        TRACED[0] = True
        return

    def noted(original, *args, **kwargs):
        TRACED[0] = True
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            hide(error)
            raise

    TRACED[0] |= not observe_calls(kind.__init__, noted)


def _time_calls(function, phase, compiling, begin=PhaseClock.push):
    """Time every call of a function as a phase.

    `begin` opens the phase and returns its depth, or None if this call is not to be timed.
    """
    looks = begin in (_begin_engine, _begin_backward)

    def timed(original, *args, **kwargs):
        try:  # Ctrl-C, too, raises its error wherever it finds this thread
            if TRACED[0] and compiling():
                return original(*args, **kwargs)
            clock = CLOCKS[get_ident()]
            depth = begin(clock, phase)
            if looks and clock.backwards >= step_facts.NEXT[0]:
                _look_at_graph(clock, args, kwargs)
            if depth is None:
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                clock.pop(depth)
        except BaseException as error:
            hide(error)
            raise

    WRAPPED[0] = timed.__code__
    observe_calls(function, timed)


def _begin_engine(clock, phase):
    """Open a phase in torch's backward engine, which counts as a step only for `backward`.

    `torch.autograd.grad` is part of a forward pass, as for a penalty on gradients.
    """
    called = sys._getframe(3).f_code.co_name
    return _begin_backward(clock, phase) if called == "backward" else clock.push(phase)


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


def _look_at_graph(clock, args, kwargs):
    depth = clock.push("probe") if clock.timed else None
    step_facts.look(TORCH["torch"], clock.backwards, args[0] if args else kwargs.get("tensors"))
    if depth is not None:
        clock.pop(depth)


def first_step(clock):
    """Do nothing; the observer replaces it, to learn that the start-up is over."""


def begin_worker():
    """Do nothing; the observer replaces it, to learn that this process is a loader's worker."""


def end_worker():
    """Do nothing; the observer replaces it, to learn that the worker is about to leave."""


def _observe_optimizers(module, compiling):
    look_at, owners, own = tables.AT_STEPS, step_facts.OWNERS, step_facts.own
    # torch.compile reads these two functions until here, and knows no module of ours by its name.
    traced = TRACED
    built_for = getattr(TORCH["torch"], "version", None)
    has_gpu = any(getattr(built_for, each, None) for each in ("cuda", "hip"))

    def before(optimizer, args, kwargs):
        if traced[0] and compiling():
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
        if traced[0] and compiling():
            return
        clock = CLOCKS[get_ident()]
        if id(optimizer) not in owners:
            own(optimizer)
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

    PASSED.update((before.__code__, after.__code__))
    HOOKS.append(module.register_optimizer_step_pre_hook(before))
    HOOKS.append(module.register_optimizer_step_post_hook(after))


def _time_closure(clock, args, kwargs):
    """Exclude forward and backward inside `step(closure)` from the time of the optimizer."""
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure):
        return None

    def timed(*inner, **named):
        try:
            depth = clock.push(clock.base[NAME])
            try:
                return closure(*inner, **named)
            finally:
                clock.pop(depth)
        except BaseException as error:
            hide(error)
            raise

    timed.__wrapped__ = closure

    if len(args) > 1:
        return (args[0], timed, *args[2:]), kwargs
    return args, {**kwargs, "closure": timed}


def _observe_no_grad(kind):
    depths = {}

    def timed_enter(enter, self):
        result = enter(self)
        clock = CLOCKS.get(get_ident())
        if clock is not None and len(clock.stack) == 1:
            if clock.loader is not None and clock.loader.keeps_graph:
                clock.loader.keeps_graph = False
                clock.loader.with_graph -= 1
            frame = sys._getframe(2)
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
            depths[id(self)] = clock.push(site.phase)
        return result

    def timed_leave(leave, self, *error):
        try:
            depth = depths.pop(id(self), None)
            if depth is not None:
                CLOCKS[get_ident()].pop(depth)
        finally:
            result = leave(self, *error)
        return result

    observe_calls(kind.__enter__, timed_enter)
    observe_calls(kind.__exit__, timed_leave)


def _site(frame):
    """Return the place that entered `no_grad`; None for a remedy, which does not evaluate."""
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
    """Observe DataLoaders and their iterators; `module` is torch.utils.data.dataloader."""
    _observe_iterators(module._BaseDataLoaderIter)
    several = module._MultiProcessingDataLoaderIter
    _time_calls(several.__init__, "workers_start", lambda: False)
    _time_calls(several._shutdown_workers, "workers_stop", lambda: False)
    WORKER_LOOP[0] = module._utils.worker._worker_loop
    observe_calls(WORKER_LOOP[0], _observe_worker)


def _observe_iterators(kind):
    known = {}

    def timed_begin(begin, self, loader, *args, **kwargs):
        key = (id(getattr(loader, "dataset", None)), getattr(loader, "batch_size", None))
        if key not in known:
            known[key] = WatchedLoader(len(LOADERS), loader)
            LOADERS.append(known[key])
        self._hpcncf_loader = known[key]
        known[key].iterators += 1
        CLOCKS[get_ident()].time_on()
        try:
            return begin(self, loader, *args, **kwargs)
        except BaseException as error:
            hide(error)
            raise

    def timed_advance(advance, self):
        try:
            clock = CLOCKS[get_ident()]
            try:
                loader = self._hpcncf_loader
            except AttributeError:
                loader = None
            if loader.__class__ is not WatchedLoader:  # None, or an earlier probe's
                if "until" not in STATE:
                    return advance(self)
                loader = loader_of(self)  # the iterator was made before the probe came
                self._hpcncf_loader = loader
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
            loader.keeps_graph = TORCH["torch"].is_grad_enabled() if "torch" in TORCH else False
            loader.with_graph += loader.keeps_graph
            return batch
        except BaseException as error:
            if isinstance(error, StopIteration):
                clock.loader = None
                clock.set_base("rest:-")
            hide(error)
            raise

    def loader_of(iterator):
        loader = LoaderOfIterator(iterator)
        key = (id(loader.dataset), loader.batch_size)
        if key not in known:
            known[key] = WatchedLoader(len(LOADERS), loader)
            LOADERS.append(known[key])
        return known[key]

    ADVANCE[0] = timed_advance.__code__
    observe_calls(kind.__init__, timed_begin)
    observe_calls(kind.__next__, timed_advance)


def _observe_worker(loop, *args, **kwargs):
    # (dataset_kind, dataset, index_queue, data_queue, done_event, auto_collation, collate_fn,
    # drop_last, base_seed, init_fn, worker_id, ...): one worker of a loader is looked at.
    number = args[10] if len(args) > 10 else kwargs.get("worker_id")
    if number == 0:
        begin_worker()
    try:
        return loop(*args, **kwargs)
    except BaseException as error:
        hide(error)
        raise
    finally:
        if number == 0:
            end_worker()


def remove(keep_workers=False):
    """Remove all hooks from torch; with `keep_workers`, not the one at a worker's start."""
    restore(WORKER_LOOP[0] if keep_workers else None)
    while HOOKS:
        HOOKS.pop().remove()


def phase_by_frames(codes, clock):
    """Derive the phase of a step that is not timed from its frames' code, the innermost first."""
    for code in codes:
        if code is ADVANCE[0] and clock.loader is not None:
            return clock.loader.input
        if code is WRAPPED[0]:  # of these, only a backward pass leaves a step untimed
            return "backward"
        if _is_optimizer(code):
            return "optimizer"
    return clock.base[NAME]


def _is_optimizer(code):
    """Return whether this code is the wrapper that torch puts around each optimizer's step."""
    return code.co_name == "wrapper" and code.co_filename.endswith(OPTIMIZER)


def _in_optimizer(frame):
    """Return whether a frame is an optimizer's step, perhaps decorated, or one of its hooks."""
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
    """Time collective operations; `module` is torch.distributed.distributed_c10d."""
    compiling = is_compiling(sys.modules.get("torch"))
    for name in COLLECTIVES:
        function = getattr(module, name, None)
        if function is not None:
            _time_calls(function, "sync", compiling)


def rank():
    """Return (rank, number of ranks) of the process group, if the program created one."""
    module = sys.modules.get("torch.distributed")
    try:
        if module is not None and module.is_available() and module.is_initialized():
            return module.get_rank(), module.get_world_size()
    except Exception:
        pass
    return None
