"""Apply the remedies of `hpcncf run --with` to the running program, from inside its process.

Whatever cannot be applied is left as the program has it, with the reason.
"""

import gc
import os
import sys
from _thread import get_ident

from _hpcncf_probe import STATE

ASKED = {}
NOTES = {}
ROWS = []

OF_LOADERS = ("workers", "persistent_workers", "prefetch_factor", "pin_memory")
OF_OPTIMIZERS = ("fused", "foreach", "rowwise")
# Where a remedy is applied.
NEEDS = {
    **dict.fromkeys(("threads", "omp"), "torch"),
    **dict.fromkeys(OF_LOADERS, "DataLoader"),
    **dict.fromkeys(OF_OPTIMIZERS, "stock optimizer"),
}


def ask(text):
    """Parse the requested remedies, such as `rowwise,threads=1`, from the environment variable."""
    for word in filter(None, (text or "").split(",")):
        name, equals, value = word.partition("=")
        ASKED[name] = (int(value) if value.isdigit() else value) if equals else True


def note(name, applied, text):
    key = (name, applied, text)
    NOTES[key] = NOTES.get(key, 0) + 1


def record():
    """Return for each remedy [its name, whether it was applied, to what or why not, how often]."""
    noted = [[_words(name), applied, text, count] for (name, applied, text), count in NOTES.items()]
    names = {name for name, _, _ in NOTES}
    for of, rows in list(ROWS):
        names.add("rowwise")
        if rows.tables:
            noted.append(["rowwise", True, f"{of}: {', '.join(rows.tables)}", 1])
        noted += [["rowwise", False, f"{of}: {each}: {why}", 1] for each, why in rows.left.items()]
    for name in ASKED:
        if name not in names:
            noted.append([_words(name), False, f"no {NEEDS.get(name, name)} was made", 1])
    return noted


def _words(name):
    value = ASKED.get(name)
    return name if value is True else f"{name}={value}"


def install(torch):
    """Prepare the requested remedies in a torch that has just been imported."""
    if "omp" in ASKED:
        note("omp", True, "OMP_WAIT_POLICY of all its processes")
    if "threads" in ASKED:
        _set_threads(torch, ASKED["threads"])
    if set(OF_OPTIMIZERS) & set(ASKED):
        base = torch.optim.Optimizer
        for kind in {each for each in vars(torch.optim).values() if isinstance(each, type)}:
            if issubclass(kind, base) and kind is not base and "__init__" in vars(kind):
                _change_optimizers(torch, kind)
        if "fused" in ASKED:
            module = sys.modules["torch.optim.optimizer"]
            module.register_optimizer_step_pre_hook(_leave_sparse_gradients)


def _set_threads(torch, threads):
    from functools import wraps

    set_threads = torch.set_num_threads
    set_threads(threads)
    note("threads", True, "torch.set_num_threads, OMP_NUM_THREADS")

    @wraps(set_threads)
    def kept(number):
        # Threads and workers of torch's own take one for themselves.
        of_torch = f"{os.sep}torch{os.sep}" in sys._getframe(1).f_code.co_filename
        if get_ident() == STATE["first_thread"][0] and not of_torch:
            note("threads", True, f"the program's set_num_threads({number}) is passed over")
            return None
        return set_threads(number)

    torch.set_num_threads = kept


# -- optimizers


FUSED = {}


def _change_optimizers(torch, kind):
    from functools import wraps

    original = kind.__init__

    @wraps(original)
    def changed(self, params, *args, **kwargs):
        if type(self) is not kind:
            return original(self, params, *args, **kwargs)
        params = params if isinstance(params, (list, tuple, dict)) else list(params)
        asked = [name for name in ("fused", "foreach") if name in ASKED]
        if not any(_made_with(name, kind, original, self, params, args, kwargs) for name in asked):
            original(self, params, *args, **kwargs)
        if "rowwise" in ASKED:
            _use_rows(torch, self)
        return None

    kind.__init__ = changed


def _made_with(name, kind, original, optimizer, params, args, given):
    """Create the optimizer with `fused` or `foreach` set; return whether that was possible."""
    refused = None
    if name not in original.__code__.co_varnames:
        refused = f"it has no {name}"
    elif given.get("fused") is not None or given.get("foreach") is not None:
        refused = "the program sets fused or foreach itself"
    else:
        try:
            original(optimizer, params, *args, **{**given, name: True})
            FUSED[id(optimizer)] = name
        except (RuntimeError, ValueError, TypeError) as error:
            refused = _first_line(error)
    of = kind.__name__ + _place()
    note(name, not refused, f"{of}: {refused}" if refused else of)
    return not refused


def _leave_sparse_gradients(optimizer, *_):
    """Reset `fused` before the first step for groups with sparse gradients, which it refuses."""
    if FUSED.pop(id(optimizer), None) != "fused":
        return
    for group in optimizer.param_groups:
        if any(each.grad is not None and each.grad.is_sparse for each in group["params"]):
            group["fused"] = None
            note("fused", False, f"{type(optimizer).__name__}: a group with sparse gradients")


def _use_rows(torch, optimizer):
    name = type(optimizer).__name__
    try:
        name += _place()
        models = _models(torch, optimizer)
        if not models:
            note("rowwise", False, f"{name}: no embedding among its parameters")
            return
        rowwise = _import_remedies("rowwise")
        model = models[0] if len(models) == 1 else torch.nn.ModuleList(models)
        ROWS.append((name, rowwise(model, optimizer, strict=False)))
    except Exception as error:
        note("rowwise", False, f"{name}: {_first_line(error)}")


def _models(torch, optimizer):
    """Return the outermost modules that contain an embedding which the optimizer updates."""
    owned = {id(each) for group in optimizer.param_groups for each in group["params"]}
    module = torch.nn.Module
    modules = [each for each in gc.get_objects() if issubclass(type(each), module)]
    parents = {}
    for each in modules:
        for child in each._modules.values():
            parents.setdefault(id(child), []).append(each)
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    todo = [each for each in modules if isinstance(each, kinds) and id(each.weight) in owned]
    seen = {}
    while todo:
        each = todo.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            todo += parents.get(id(each), [])
    return [each for number, each in seen.items() if number not in parents]


def _import_remedies(name):
    """Import a remedy from hpcncf.remedies; without hpcncf in the program, from our own copy."""
    import importlib.util

    if importlib.util.find_spec("hpcncf") is None:
        folder = STATE["inside"]
        for _ in range(3):
            folder = os.path.dirname(folder)
        spec = importlib.util.spec_from_file_location(
            "hpcncf", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        module = sys.modules["hpcncf"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return getattr(importlib.import_module("hpcncf.remedies"), name)


def _place():
    """Return the user's line that led here, as ` at train.py:12`; empty if it cannot be found."""
    try:
        from _hpcncf_probe.observer import is_user

        frame = sys._getframe(1)
        while frame is not None:
            path = frame.f_code.co_filename
            if "_hpcncf_probe" not in path and is_user(path, frame.f_globals):
                return f" at {os.path.basename(path)}:{frame.f_lineno}"
            frame = frame.f_back
    except Exception:  # the program must not see that there is a probe
        pass
    return ""


def _first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


# -- loaders


def install_loaders(module):
    """Have DataLoaders created with the remedies; `module` is torch.utils.data.dataloader."""
    import inspect
    from functools import wraps

    if not set(OF_LOADERS) & set(ASKED):
        return
    original = module.DataLoader.__init__
    signature = inspect.signature(original)

    @wraps(original)
    def changed(self, *args, **kwargs):
        try:
            given = signature.bind(self, *args, **kwargs)
            stay = given.arguments.get("persistent_workers", False)
            notes = _change_arguments(module, given.arguments)
            original(*given.args, **given.kwargs)
        except Exception as error:
            notes = None
            refused = f"DataLoader: {_first_line(error)}"
        if notes is None:
            original(self, *args, **kwargs)
            notes = [(name, False, refused) for name in OF_LOADERS if name in ASKED]
        elif self.persistent_workers and not stay:
            self._hpcncf_persistent = True
        for each in notes:
            note(*each)

    module.DataLoader.__init__ = changed
    _draw_as_new_workers(module)


def _change_arguments(module, given):
    """Change a DataLoader call's arguments in place; return notes on what was changed."""
    dataset, size = given.get("dataset"), given.get("batch_size", 1)
    of = f"DataLoader of {type(dataset).__name__}" + (f", batch {size}" if size else "") + _place()
    before = workers = given.get("num_workers", 0)
    notes = []
    if "workers" in ASKED:
        refused = _refuses_workers(module, given) if ASKED["workers"] and not before else None
        notes.append(("workers", not refused, f"{of}: {refused}" if refused else of))
        if not refused:
            workers = given["num_workers"] = ASKED["workers"]
    for name in ("persistent_workers", "prefetch_factor"):
        if name in ASKED:
            notes.append((name, workers > 0, of if workers else f"{of}: it has no workers"))
            if workers:
                given[name] = ASKED[name]
    if "pin_memory" in ASKED:
        gpu = sys.modules["torch"].cuda.is_available()
        notes.append(("pin_memory", gpu, of if gpu else f"{of}: there is no GPU"))
        if gpu:
            given["pin_memory"] = True
    if not workers:
        for name in ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context"):
            given.pop(name, None)
    return notes


def _refuses_workers(module, given):
    """Return why this loader cannot be given workers if the program itself gives it none."""
    dataset = given.get("dataset")
    if isinstance(dataset, module.IterableDataset):
        return "each worker would repeat an IterableDataset"
    import multiprocessing

    start = given.get("multiprocessing_context") or multiprocessing.get_start_method()
    if start != "fork":
        return "workers would not be forked, and may not be able to get the data set"
    values = list(getattr(dataset, "tensors", ())) + list(getattr(dataset, "__dict__", {}).values())
    if any(getattr(each, "is_cuda", False) for each in values):
        return "its data is on a GPU"
    return None


def _draw_as_new_workers(module):
    """Draw the seed that new workers would draw in each epoch, although the workers persist.

    Without that draw, all random numbers after it would differ from the unchanged program's.
    """
    from functools import wraps

    kind = module._MultiProcessingDataLoaderIter
    original = kind._reset

    @wraps(original)
    def reset(self, loader, first_iter=False):
        if not first_iter and getattr(loader, "_hpcncf_persistent", False):
            torch = sys.modules["torch"]
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return original(self, loader, first_iter)

    kind._reset = reset
