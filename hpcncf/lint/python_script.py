"""Lint a training program in Python: its samples, batches, loops, model, threads and ports."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Final

from hpcncf.errors import HpcncfError
from hpcncf.lint.rules import (
    THREAD_VARIABLES,
    Complaint,
    ProgramContext,
    complain,
    too_many_threads,
    too_many_workers,
)

COMPREHENSIONS: Final = (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)
LOOPS: Final = (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)
DRAWS: Final = frozenset({"choice", "choices", "sample", "shuffle", "permutation", "randperm"})
BACKWARD: Final = frozenset({"backward", "manual_backward"})
WITHOUT_GRAPH: Final = frozenset({"item", "detach", "tolist", "numpy"})
PANDAS: Final = frozenset({"iloc", "loc", "iat", "at"})
TENSORS: Final = frozenset(
    {"tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "Tensor"}
)
TORCH: Final = ("torch", "th")
OWN_ORDER: Final = frozenset({"sampler", "batch_sampler", "shuffle"})
SHUFFLE_AT: Final = 2  # DataLoader(dataset, batch_size, shuffle)
EVALUATION_NAMES: Final = ("test", "val", "eval")
LIGHTNING: Final = "train_dataloader"
# Optimisers that move every row of a dense table in every step.
DENSE_OPTIMIZERS: Final = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "Adamax"})
MANY_ROWS: Final = 20_000
"""Rows of a table that a batch reads a small part of. Vocabularies of language models, whose output
layer reads every row, are left aside by their names."""
VOCABULARY: Final = ("vocab", "token", "word", "position")
SIZES: Final = {
    "Embedding": ("num_embeddings", "embedding_dim"),
    "Linear": ("in_features", "out_features"),
}
ANOMALY: Final = ("detect_anomaly", "set_detect_anomaly")
HALVES: Final = frozenset({"autocast", "GradScaler", "half", "bfloat16"})
MULTIPLE: Final = 8
SMALLEST_SIZE: Final = 64
"""Sizes below it are heads and inputs of a few columns: padding those gains nothing."""


UNKNOWN: Final = ProgramContext()


def check_python(text: str, program: ProgramContext = UNKNOWN) -> list[Complaint]:
    """Check a Python file; return all complaints in the order of its lines.

    Raises HpcncfError if the text is not Python.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of invalid escapes in strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        where, what = "", str(error)
        if isinstance(error, SyntaxError):
            where, what = f"line {error.lineno}: ", error.msg
        raise HpcncfError(f"{where}not Python of this version: {what}") from None
    numbers, cores = _numbers(tree), program.cores
    found = {*_per_sample(tree), *_loops(tree), *_loaders(tree, cores), *_models(tree, numbers)}
    found |= set(_threads(tree, cores, numbers))
    if not program.sets_epoch:
        found |= set(_samplers(tree))
    if program.in_array:
        found |= set(_fixed_ports(tree))
    if _stays_on_cpu(tree):
        found = {each for each in found if each.rule != "synchronised-step"}
    return sorted(found)


def _stays_on_cpu(tree: ast.AST) -> bool:
    """Return whether a program that imports torch never mentions a GPU or a device.

    Reading its losses then never waits for a GPU.
    """
    nodes = list(ast.walk(tree))
    imports_torch = any(
        isinstance(node, ast.Import) and any(each.name in TORCH for each in node.names)
        for node in nodes
    )
    names = {name.lower() for node in nodes for name in _names_of(node)}
    return imports_torch and not any(
        word in name for name in names for word in ("cuda", "device", "gpu", "accelerator")
    )


def _names_of(node: ast.AST) -> list[str]:
    """Return the name that a syntax node has, or its text if it is a string, as a list."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.keyword):
        return [node.arg or ""]
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _called_name(call: ast.Call) -> str:
    """Return the last name of a called function, such as `tensor` of `torch.tensor(...)`."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _keywords(call: ast.Call) -> dict[str | None, ast.expr]:
    """Return a call's keyword arguments, name -> value; `**options` has the name None."""
    return {word.arg: word.value for word in call.keywords}


def _is_false(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _is_list_of_difference(call: ast.Call) -> bool:
    """Return whether a call makes a list of a set difference, such as `list(a - b)`.

    So do `list(a.difference(b))`, and `sorted` and `tuple` in place of `list`.
    """
    if _called_name(call) not in ("list", "sorted", "tuple") or len(call.args) != 1:
        return False
    given = call.args[0]
    if isinstance(given, ast.Call):
        return isinstance(given.func, ast.Attribute) and given.func.attr == "difference"
    return isinstance(given, ast.BinOp) and isinstance(given.op, ast.Sub)


def _per_sample(tree: ast.AST) -> Iterator[Complaint]:
    """Find slow work for every sample in the `__getitem__` of a Dataset."""
    nodes = [
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function.name == "__getitem__"
        for node in ast.walk(function)
    ]
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            if node.value.attr in PANDAS:
                yield complain(node.lineno, "pandas-per-sample", name=node.value.attr)
        elif isinstance(node, ast.Call):
            name = _called_name(node)
            if name in TENSORS and _is_torchs(node.func):
                yield complain(node.lineno, "tensor-per-sample", name=name)
            if _is_list_of_difference(node):
                yield complain(node.lineno, "set-difference")


def _is_torchs(function: ast.expr) -> bool:
    """Return whether a function is torch's: `torch.tensor`, or an imported `tensor`.

    A method `tensor` of the user's own class is not.
    """
    if not isinstance(function, ast.Attribute):
        return True
    return isinstance(function.value, ast.Name) and function.value.id in TORCH


def _loops(tree: ast.AST) -> Iterator[Complaint]:
    for loop in ast.walk(tree):
        if not isinstance(loop, LOOPS):
            continue
        turn = list(_turn(loop))
        calls = [node for node in turn if isinstance(node, ast.Call)]
        # Only if something is drawn as well: a list of remaining items has other uses.
        if any(_called_name(call) in DRAWS for call in calls):
            drawn_from = filter(_is_list_of_difference, calls)
            yield from (complain(call.lineno, "set-difference") for call in drawn_from)
        yield from _training_steps(turn)


def _turn(loop: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run in each turn of a loop.

    An inner loop contributes only what it runs once, at its start.
    """
    once = {id(node) for node in _run_once(loop)}
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(loop):
        is_clause = isinstance(child, ast.comprehension)
        nodes += ast.iter_child_nodes(child) if is_clause else [child]
    remaining = [node for node in nodes if id(node) not in once]
    while remaining:  # not recursive: generated code is nested deeper than Python's limit
        node = remaining.pop()
        yield node
        remaining += _run_once(node) if isinstance(node, LOOPS) else ast.iter_child_nodes(node)


def _run_once(loop: ast.AST) -> list[ast.AST]:
    """Return the nodes that a loop evaluates once, before its first turn."""
    if isinstance(loop, ast.For | ast.AsyncFor):
        return [loop.iter]
    return [loop.generators[0].iter] if isinstance(loop, COMPREHENSIONS) else []


def _training_steps(turn: list[ast.AST]) -> Iterator[Complaint]:
    losses = _losses(turn)
    if not losses:
        return
    with_graph = losses - _names_without_graph(turn)
    # `if step % 100 == 0: print(loss.item())` runs in some steps only, `if rank == 0:` in all.
    branches = [
        [node for part in each.body for node in ast.walk(part)]
        for each in turn
        if isinstance(each, ast.If) and not _chooses_rank(each.test)
    ]
    occasional = {id(node) for branch in branches if not _losses(branch) for node in branch}
    for node in turn:
        if _keeps_graph(node, with_graph):
            yield complain(node.lineno, "kept-graph")  # type: ignore[attr-defined]
        if not isinstance(node, ast.Call) or id(node) in occasional:
            continue
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            method, owner = function.attr, function.value.id
            if method == "save" and owner in TORCH:
                yield complain(node.lineno, "checkpoint-each-step")
            if method == "item" and owner in losses:
                yield complain(node.lineno, "synchronised-step")


def _chooses_rank(test: ast.expr) -> bool:
    """Return whether a condition selects a rank, such as `rank == 0`.

    So do `is_main_process()` and `accelerator.is_main_process`, but not `step % 100 == 0`.
    """
    if any(isinstance(node, ast.Mod) for node in ast.walk(test)):
        return False
    return any(re.search("rank|main|master", name) for name in _names(test))


def _losses(nodes: list[ast.AST]) -> set[str]:
    """Return names of losses, on which `backward` is called.

    Known forms are `loss.backward()`, `scaler.scale(loss / 4).backward()` and
    `accelerator.backward(loss)`.
    """
    found: set[str] = set()
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in BACKWARD:
            continue
        if isinstance(function.value, ast.Name) and not call.args:
            found.add(function.value.id)
            continue
        # The receiver is the loss or the differentiator, the argument the loss or a gradient.
        inside = [node for part in (function.value, *call.args) for node in ast.walk(part)]
        found |= {each.id for each in inside if isinstance(each, ast.Name) and "loss" in each.id}
    return found


def _names_without_graph(turn: list[ast.AST]) -> set[str]:
    """Return names assigned a value without autograd graph, as in `loss = loss.item()`."""
    return {
        target.id
        for node in turn
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _called_name(node.value) in WITHOUT_GRAPH
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _keeps_graph(node: ast.AST, losses: set[str]) -> bool:
    """Return whether a statement keeps a loss's autograd graph, such as `total += loss`.

    So do `losses.append(loss)` and `total = total + loss`, but not `loss = loss + penalty`,
    which is differentiated.
    """
    if isinstance(node, ast.AugAssign):
        return not _has_graph(node.target, losses) and _has_graph(node.value, losses)
    if isinstance(node, ast.Call):
        appends = _called_name(node) == "append" and node.args
        return bool(appends) and _has_graph(node.args[0], losses)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
        name = node.targets[0].id if isinstance(node.targets[0], ast.Name) else None
        sides = [node.value.left, node.value.right]
        adds_up = any(isinstance(side, ast.Name) and side.id == name for side in sides)
        return adds_up and name not in losses and any(_has_graph(side, losses) for side in sides)
    return False


def _has_graph(node: ast.AST, losses: set[str]) -> bool:
    """Return whether an expression is a loss, or arithmetic with a loss."""
    if isinstance(node, ast.BinOp):
        return _has_graph(node.left, losses) or _has_graph(node.right, losses)
    return isinstance(node, ast.Name) and node.id in losses


def _loaders(tree: ast.AST, cores: int | None) -> Iterator[Complaint]:
    training = _training_loaders(tree)
    for call in _calls(tree):
        if _called_name(call) != "DataLoader":
            continue
        given = _keywords(call)
        has_order = len(call.args) > SHUFFLE_AT or {None, *OWN_ORDER} & set(given)
        is_training = any("train" in name.lower() for name in _data_names(call))
        if not has_order and (is_training or (id(call) in training and not _evaluates(call))):
            yield complain(call.lineno, "no-shuffle")
        workers = given.get("num_workers")
        if isinstance(workers, ast.Constant) and isinstance(workers.value, int):
            yield from too_many_workers(call.lineno, workers.value, cores)


def _training_loaders(tree: ast.AST) -> set[int]:
    """Return ids of the DataLoader calls that serve training.

    A loop calls `backward` on their batches, or a function such as Lightning's
    `train_dataloader` contains them.
    """
    looped = {
        name
        for loop in ast.walk(tree)
        if isinstance(loop, ast.For | ast.AsyncFor) and _losses(list(_turn(loop)))
        for name in _names(loop.iter)
    }
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and looped & {
            name for target in node.targets for name in _names(target)
        }:
            found.add(id(node.value))
        if isinstance(node, ast.FunctionDef) and LIGHTNING in node.name:
            found |= {id(each) for each in ast.walk(node)}
    return found


def _evaluates(call: ast.Call) -> bool:
    names = "".join(_data_names(call)).lower()
    return any(word in names for word in EVALUATION_NAMES)


def _data_names(call: ast.Call) -> list[str]:
    """Return the names in a DataLoader call's data set, as in `DataLoader(train_data, ...)`."""
    data = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "dataset")]
    return [name for each in data for name in _names(each)]


def _names(tree: ast.AST) -> list[str]:
    return [
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    ]


def _samplers(tree: ast.AST) -> Iterator[Complaint]:
    for call in _calls(tree):
        keeps_order = _is_false(_keywords(call).get("shuffle"))
        if _called_name(call) == "DistributedSampler" and not _evaluates(call) and not keeps_order:
            yield complain(call.lineno, "no-set-epoch")


def _numbers(tree: ast.AST) -> dict[str, int]:
    """Map names to their whole number, if they have only one in the file.

    The number is assigned, a parameter's default, or a default in argparse (`--n-users` with
    `default=1000`: `args.n_users`).
    """
    found: dict[str, set[int | None]] = {}

    def note(name: str, value: ast.AST) -> None:
        found.setdefault(name, set()).add(_number(value, {}))

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for name, value in pairs:
                    if isinstance(name, ast.Name):
                        note(name.id, value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            note(node.target.id, node)
        elif isinstance(node, ast.arguments):
            ordinary = [*node.posonlyargs, *node.args]
            for argument, default in zip(reversed(ordinary), reversed(node.defaults), strict=False):
                note(argument.arg, default)
            for argument, keyword in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                if keyword is not None:
                    note(argument.arg, keyword)
        elif isinstance(node, ast.Call) and _called_name(node) == "add_argument" and node.args:
            given, option = _keywords(node), node.args[-1]
            if "default" in given and isinstance(option, ast.Constant):
                note(str(option.value).lstrip("-").replace("-", "_"), given["default"])
    return {name: number for name, (number, *more) in found.items() if number and not more}


def _number(value: ast.AST | None, numbers: dict[str, int]) -> int | None:
    """Evaluate a positive whole number: a constant, a known name, or a product; else None."""
    if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0:
        return value.value
    if isinstance(value, ast.Name | ast.Attribute):
        return numbers.get(value.id if isinstance(value, ast.Name) else value.attr)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        left, right = _number(value.left, numbers), _number(value.right, numbers)
        return left * right if left and right else None
    return None


def _models(tree: ast.AST, numbers: dict[str, int]) -> Iterator[Complaint]:
    """Find costly models: slow layers, awkward sizes, DataParallel, and how they are run."""
    calls = list(_calls(tree))
    called = {_called_name(call) for call in calls}
    on_tensor_cores = bool(called & HALVES) and any(map(_is_about_gpus, ast.walk(tree)))
    # `hpcncf.remedies.rowwise(model, optimizer)` is what the complaint asks for.
    optimizers = [] if "rowwise" in called else sorted(called & DENSE_OPTIMIZERS)
    for call in calls:
        name = _called_name(call)
        given = dict(zip(SIZES.get(name, ()), call.args, strict=False)) | _keywords(call)
        if name == "DataParallel":
            yield complain(call.lineno, "data-parallel")
        if name in ANOMALY and not any(map(_is_false, call.args)):
            yield complain(call.lineno, "anomaly-detection")
        if name == "Embedding" and optimizers:
            rows = _number(given.get("num_embeddings"), numbers) or 0
            is_dense = "sparse" not in given or _is_false(given["sparse"])
            if rows >= MANY_ROWS and is_dense and not _is_vocabulary(given["num_embeddings"]):
                yield complain(call.lineno, "dense-embedding", optimizer=optimizers[0], rows=rows)
        if name == "Linear" and on_tensor_cores:
            sizes = [_number(given.get(key), numbers) or 0 for key in SIZES["Linear"]]
            odd = [size for size in sizes if size >= SMALLEST_SIZE and size % MULTIPLE]
            if odd:
                larger = [-(-size // MULTIPLE) * MULTIPLE for size in odd]
                yield complain(
                    call.lineno,
                    "layer-size",
                    sizes=" and ".join(map(str, odd)),
                    multiple=MULTIPLE,
                    larger=" and ".join(map(str, larger)),
                )


def _is_vocabulary(size: ast.expr) -> bool:
    text = ast.unparse(size).lower()
    return any(word in text for word in VOCABULARY)


def _is_about_gpus(node: ast.AST) -> bool:
    """Return whether a syntax node refers to CUDA, such as `"cuda:0"` or `torch.cuda`."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith("cuda")
    if isinstance(node, ast.ImportFrom):
        return "cuda" in (node.module or "").split(".")
    return isinstance(node, ast.Attribute) and node.attr == "cuda"


def _threads(tree: ast.AST, cores: int | None, numbers: dict[str, int]) -> Iterator[Complaint]:
    """Find numbers of threads above the number of cores, as in `torch.set_num_threads(64)`.

    Environment variables such as MKL_NUM_THREADS count as well.
    """
    values = [value for name, value in _variables(tree) if name in THREAD_VARIABLES]
    for call in _calls(tree):
        if _called_name(call) == "set_num_threads":
            values += call.args[:1]
    for value in values:
        text = _text(value)
        threads = int(text) if re.fullmatch(r"\d{1,6}", text) else _number(value, numbers)
        yield from too_many_threads(value.lineno, threads, cores)


def _fixed_ports(tree: ast.AST) -> Iterator[Complaint]:
    """Find fixed ports for ranks to meet at, as in `os.environ["MASTER_PORT"] = "29500"`."""
    values = [value for name, value in _variables(tree) if name == "MASTER_PORT"]
    for call in _calls(tree):
        values += [word.value for word in call.keywords if word.arg == "init_method"]
    for value in values:
        if port := re.fullmatch(r"(?:tcp://.*:)?(\d+)", _text(value)):
            yield complain(value.lineno, "fixed-port", port=port[1])


def _text(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else ""


def _variables(tree: ast.AST) -> Iterator[tuple[object, ast.expr]]:
    """Yield each environment variable that the program sets, with its value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    yield target.slice.value, node.value
        elif (
            isinstance(node, ast.Call)
            and _called_name(node) in ("setdefault", "putenv")
            and len(node.args) == 2
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value, node.args[1]
