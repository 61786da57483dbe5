"""A GPU that computes nothing, on any machine: what a real one would refuse, it refuses, too.

torch's own FakeTensorMode knows a tensor's device, size and type, and no value. So tensors of two
devices in one operation fail here as there. What a real GPU does, but slowly, fails where `queued`
or a capture says that no host may wait: a value that the host asks for, a size that only the device
knows, a copy between host and device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE: Final = torch.device("cuda", 0)
FREE_BYTES: Final = 2**36
# Of c10::DeviceType.
CPU, CUDA = 0, 1
UNKNOWN_SIZES: Final = {"nonzero", "masked_select", "_unique", "_unique2", "unique_dim"}
INDEXING: Final = {"index", "index_put", "index_put_", "_index_put_impl_"}
WAITING: Final = {"_local_scalar_dense", "copy_", "_to_copy", *UNKNOWN_SIZES, *INDEXING}

aten = torch.ops.aten
PINNING: Final[dict[Any, Callable[[Tensor], Any]]] = {
    aten.is_pinned.default: lambda _: False,
    aten._pin_memory.default: torch.clone,
}


class HostWaits(AssertionError):
    """The host would wait for the GPU, or a capture would fail."""


class FakeGpu(FakeTensorMode):
    """While it is entered, torch has one GPU. Tensors elsewhere are real; what comes from the GPU
    are ones."""

    avoid_device_init = True  # there is none to begin, whatever is_available() says

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._queues = False
        self.captures = self.replays = 0

    @contextmanager
    def queued(self) -> Iterator[None]:
        """In it the host may only queue work: whatever would have it wait raises HostWaits."""
        before, self._queues = self._queues, True
        try:
            yield
        finally:
            self._queues = before

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if self._queues and (why := _waits(func, args, kwargs, tensors)):
            raise HostWaits(f"{func}: {why}")
        if func in PINNING:
            return PINNING[func](args[0])
        fakes = sum(isinstance(each, FakeTensor) for each in tensors)
        # What is computed of the GPU's tensors, torch itself works out on others, of device meta.
        if not fakes and _device(kwargs).type != "cuda":
            return func(*args, **kwargs)
        if func is aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        if func is aten._to_copy.default and _device(kwargs).type == "cpu":
            dtype = kwargs.get("dtype") or args[0].dtype
            return torch.ones(args[0].shape, dtype=dtype)
        if func is aten.copy_.default and not _on_gpu(args[0]):
            return args[0].fill_(1)
        if fakes < len(tensors):
            args, kwargs = tree_map(self._without_values, (args, kwargs))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _without_values(self, part: Any) -> Any:
        if not isinstance(part, Tensor) or isinstance(part, FakeTensor):
            return part
        made = aten.empty_strided.default, (), (part.shape, part.stride())
        return super().__torch_dispatch__(*made, {"dtype": part.dtype, "device": part.device})


def _device(kwargs: dict[str, Any]) -> torch.device:
    return torch.device(kwargs.get("device") or "meta")


def _waits(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Tensor]
) -> str | None:
    name = func._schema.name.removeprefix("aten::")
    if name not in WAITING:
        return None
    there = [each for each in tensors if _on_gpu(each)]
    if name == "_local_scalar_dense" and there:
        return "the host asks for a value"
    if name in UNKNOWN_SIZES and there:
        return "only the device knows how many there are"
    elsewhere = [each for each in tensors if not _on_gpu(each)]
    if name in ("copy_", *INDEXING) and there and any(each.dim() for each in elsewhere):
        return "a copy between host and device"
    if name == "_to_copy" and {_device(kwargs).type, args[0].device.type} == {"cpu", "cuda"}:
        return "a copy between host and device"
    return None


def _on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == "cuda"


class Stream:
    """One after another: there is nothing to wait for."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def wait_stream(self, other: Stream) -> None:
        assert isinstance(other, Stream)


class FakeRuntime:
    """What of torch.cuda the code calls."""

    gpu: FakeGpu

    @staticmethod
    @contextmanager
    def stream(stream: Stream) -> Iterator[None]:
        assert isinstance(stream, Stream)
        yield

    @staticmethod
    def make_graphed_callables(
        module: nn.Module, samples: tuple[Tensor, ...]
    ) -> Callable[..., Tensor]:
        """As torch's, it takes only what can be captured, and inputs of the samples' sizes."""
        with FakeRuntime.gpu.queued():
            module(*samples)
        FakeRuntime.gpu.captures += 1
        sizes = [each.shape for each in samples]

        def replay(*inputs: Tensor) -> Tensor:
            assert [each.shape for each in inputs] == sizes
            FakeRuntime.gpu.replays += 1
            logits: Tensor = module(*inputs)
            return logits

        return replay


def backward(loss: Tensor) -> None:
    """The leaves' gradients, zeros: autograd itself works on no GPU that is none."""
    left, seen = [loss.grad_fn], set[Any]()
    while left:
        at = left.pop()
        if at is None or at in seen:
            continue
        seen.add(at)
        left += [each for each, _ in at.next_functions]
        leaf = getattr(at, "variable", None)
        if leaf is not None:
            leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad + 0.0


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


@contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """torch's own names are replaced, none of ours."""
    gpu = FakeRuntime.gpu = FakeGpu()
    got: dict[str, Any] = {
        "is_available": _always(True),
        "device_count": _always(1),
        "current_device": _always(0),
        "set_device": _always(None),
        "synchronize": _always(None),
        "mem_get_info": _always((FREE_BYTES, FREE_BYTES)),
        "get_device_name": _always("a fake GPU"),
        "get_device_capability": _always((9, 0)),
        "is_bf16_supported": _always(True),
        "get_rng_state": _always(torch.zeros(16, dtype=torch.uint8)),
        "set_rng_state": _always(None),
        "current_stream": _always(Stream()),
        "Stream": Stream,
        "stream": FakeRuntime.stream,
        "make_graphed_callables": FakeRuntime.make_graphed_callables,
    }
    for name, answer in got.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    on_host = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda *_: on_host())
    monkeypatch.setattr(Tensor, "backward", backward)
    monkeypatch.setattr(Tensor, "record_stream", _always(None))
    with _guarded(), gpu:
        yield gpu


@contextmanager
def _guarded() -> Iterator[None]:
    """Where torch was built without CUDA, indexing asks in vain for what selects a GPU. That of
    the CPU, which does nothing, answers for it."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before = registry[CUDA]
    registry[CUDA] = before or registry[CPU]
    try:
        yield
    finally:
        registry[CUDA] = before
