"""Engine reference: the paper's module with torch's own optimizers and DDP."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DataParallel, DistributedDataParallel

from hpcncf.data.prepared import PreparedData
from hpcncf.errors import HpcncfError
from hpcncf.job.spec import Training
from hpcncf.ncf.batches import Batch, copied_to_device
from hpcncf.ncf.engines import precision
from hpcncf.ncf.engines.precision import HALF_DTYPES, OptimizerSteps
from hpcncf.ncf.evaluate import Candidates, rank_test_rows
from hpcncf.ncf.loaders import RankLoader
from hpcncf.ncf.model import NeuMF
from hpcncf.ncf.step_clock import StepClock

# The exposed wait for other ranks (`sync`) lasts from the hand-over of the last bucket of gradients
# to the all-reduce, when this rank has no backward work left, until `backward()` returns with every
# gradient averaged. It includes the transfer and the wait for slower ranks.


class ReplicatedModel:
    """Model on several ranks, called like the module; `backward` averages the ranks' gradients."""

    def __init__(
        self,
        module: nn.Module,
        training: Training,
        world_size: int,
        device: torch.device,
        sent: Callable[[int], None],
    ) -> None:
        """Wrap the module for training on several ranks or GPUs.

        `sent` is called with the size in bytes of each gradient bucket handed to the all-
        reduce.
        """
        self._sent = sent
        self.averages = world_size > 1
        self.gradients_ready_at: float | None = None
        """When the last bucket was handed to the all-reduce."""
        torch.backends.cudnn.benchmark = training.cudnn_benchmark
        self._parallel: nn.Module = module
        if training.parallel == "data_parallel" and device.type == "cuda":
            self._parallel = DataParallel(module)
        elif self.averages:
            self._parallel = self._distributed(module, device)

    def __call__(self, users: Tensor, items: Tensor, context: Tensor) -> Tensor:
        logits: Tensor = self._parallel(users, items, context)
        return logits

    def no_sync(self) -> AbstractContextManager[None]:
        """Context in which backward passes add to this rank's gradients without an exchange."""
        if isinstance(self._parallel, DistributedDataParallel):
            return self._parallel.no_sync()
        return nullcontext()

    def _distributed(self, module: nn.Module, device: torch.device) -> DistributedDataParallel:
        devices = [device] if device.type == "cuda" else None
        parallel = DistributedDataParallel(module, device_ids=devices)
        # A lambda: DDP reads annotations as types, and ours are text.
        parallel.register_comm_hook(None, lambda group, bucket: self._all_reduce(group, bucket))
        return parallel

    def _all_reduce(self, group: Any, bucket: Any) -> torch.futures.Future[Any]:
        """Start torch's default all-reduce of a bucket, and note its time and size."""
        self._sent(gradient_bytes(bucket.buffer()))
        self.gradients_ready_at = time.perf_counter()
        return allreduce_hook(group, bucket)


def gradient_bytes(gradient: Tensor) -> int:
    """Size of a gradient in bytes; for a sparse one, that of its indices and values."""
    if not gradient.is_sparse:
        return gradient.nbytes
    return gradient._indices().nbytes + gradient._values().nbytes


# Compilation happens before the first step, so that its time belongs to the start-up and the code
# does not depend on the first batch: a resumed run gets the same bits.

COMPILE_WARMUPS = 3  # TorchScript watches two calls, and optimises at the third

INDUCTOR_OPTIONS: dict[str, Any] = {
    # Each rank compiles with its own core; a pool of 32 processes would stay for the whole run.
    "compile_threads": 1,
    # The masks of torch's own dropout, not the compiler's.
    "fallback_random": True,
}
# What torch.compile's mode of that name sets; it takes a mode or options, not both.
REDUCE_OVERHEAD: dict[str, Any] = {"triton.cudagraphs": True}


class ModelCall(nn.Module):
    """Wrapper of the model as a module of its own, for CUDA graphs of one batch size.

    `make_graphed_callables` replaces this module's `forward`; the model's own stays for batches of
    another size and for the evaluation.
    """

    def __init__(self, model: NeuMF) -> None:
        super().__init__()
        self.model = model

    def forward(self, users: Tensor, items: Tensor, context: Tensor) -> Tensor:
        logits: Tensor = self.model(users, items, context)
        return logits


class CompiledForward(nn.Module):
    """Logits as the model's own `forward`; its parameters are the model's."""

    def __init__(self, model: NeuMF, training: Training, world_size: int, device: str) -> None:
        super().__init__()
        self.model = model
        self._device, self._half = device, HALF_DTYPES.get(training.precision)
        self._graphs = training.cuda_graph
        self._least = min_instances(training, world_size)
        # In a tuple: as a module of this one it would own the model's parameters once more.
        self._compiled: tuple[Any, ...] = ()
        self._fits: Callable[[int], bool] = lambda instances: instances >= self._least
        if training.cuda_graph:
            # A graph repeats its operations on tensors of one size.
            self._fits = lambda instances: instances == self._least
            self._compiled = (self._graphed(),)
            return
        if training.compile == "inductor":
            self._compiled = (torch.compile(model, dynamic=True, options=INDUCTOR_OPTIONS),)
        elif training.compile == "reduce-overhead":
            # Not dynamic: torch would capture a graph for each size, and sizes differ by a row.
            options = INDUCTOR_OPTIONS | REDUCE_OVERHEAD
            self._compiled = (torch.compile(model, dynamic=False, options=options),)
        elif training.compile == "torchscript":
            with warnings.catch_warnings():
                # torch calls TorchScript deprecated; who asks for it by name wants to see it.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._compiled = (torch.jit.script(model),)
        if self._compiled:
            self._warm_up(training)

    def forward(self, users: Tensor, items: Tensor, context: Tensor) -> Tensor:
        run = self.model
        # An epoch's last batch is smaller: inductor would compile it again, for seconds.
        if self._compiled and self._fits(len(users)):
            run = self._compiled[0]
        if self._half is None:
            logits: Tensor = run(users, items, context)
            return logits
        with self._autocast():
            logits = run(users, items, context)
        return logits.float()

    def _autocast(self) -> torch.autocast:
        # A cached copy of a weight would be freed after the step, and a graph would read it again.
        return torch.autocast(
            self._device, self._half, enabled=self._half is not None, cache_enabled=not self._graphs
        )

    def _samples(self) -> tuple[Tensor, Tensor, Tensor]:
        """Dummy users, items and context of the smallest whole part of a step."""
        # Two tensors: inductor would compile again for items that are not the users.
        users, items = (
            torch.zeros(self._least, dtype=torch.int64, device=self._device) for _ in range(2)
        )
        return users, items, torch.zeros(self._least, self.model.columns, device=self._device)

    def _graphed(self) -> Any:
        """Capture forward and backward pass of a whole part of a step as CUDA graphs.

        Not yet measured on a GPU.
        """
        with self._autocast():
            return torch.cuda.make_graphed_callables(ModelCall(self.model), self._samples())

    def _warm_up(self, training: Training) -> None:
        """Compile the model with dummy batches. Raises HpcncfError if that fails."""
        users, items, context = self._samples()
        try:
            # Of the device it trains on: to ask all would begin a context on each GPU of the node.
            mine = [torch.cuda.current_device()] if self._device == "cuda" else []
            with torch.random.fork_rng(mine):
                for _ in range(COMPILE_WARMUPS):
                    self(users, items, context).sum().backward()
        except RuntimeError as error:
            raise HpcncfError(_describe_failure(training, error)) from error
        self.model.zero_grad()


def min_instances(training: Training, world_size: int) -> int:
    """Number of instances in the smallest part of a whole step.

    That is on the rank with the fewest positives. With `accumulate` 1 a step has one part.
    """
    positives = training.batch_over_ranks(world_size) // world_size
    return max(1, positives * (1 + training.negatives) // training.accumulate)


def _describe_failure(training: Training, error: RuntimeError) -> str:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    advice = (
        "Use compile: none"
        if training.compile == "torchscript"
        else "torch.compile needs a C++ compiler on the node (g++, or the one that CXX names), and "
        "on a GPU Triton, a C compiler (CC) and Python's headers. Load their modules in the site's "
        "setup lines, or use compile: none"
    )
    return f"training.compile {training.compile}: {reason}. {advice}"


# The loss is the sum over this rank's instances, scaled so that DDP's mean over ranks is the mean
# over all ranks' instances: shards, and the parts of a step, may differ by a row or be empty. Times
# are the host's: on a GPU a phase ends when its kernels are queued.


class ReferenceEngine:
    """Engine that trains the model as it is, by torch's own optimizers, compilers and DDP."""

    def __init__(
        self,
        model: NeuMF,
        training: Training,
        world_size: int,
        device: torch.device,
        clock: StepClock,
    ) -> None:
        self.model, self.clock = model, clock
        self.optimizer = precision.build_optimizer(model, training)
        self._steps = OptimizerSteps(self.optimizer, training, device.type)
        self.loss: Tensor = torch.zeros((), dtype=torch.float64, device=device)
        self._device, self._training, self._parts = device, training, training.accumulate
        forward = CompiledForward(model, training, world_size, device.type)
        self._replicas = ReplicatedModel(forward, training, world_size, device, clock.sent)
        self._shares = world_size if self._replicas.averages else 1

    def batches(self, loader: RankLoader, epoch: int, steps: range) -> Iterator[Batch]:
        batches = copied_to_device(loader.epoch(epoch, steps), self._training, self._device)
        return map(Batch._make, batches)

    def step(
        self,
        batches: Iterator[Batch],
        instances: int,
        most: int = 1,  # noqa: ARG002  each by itself
    ) -> tuple[float, list[int]]:
        """Take a step on the next batch, with gradients accumulated over its parts.

        The loss stays a tensor on the device: reading it would wait for the GPU.
        """
        batch = next(batches)
        waited = self.clock.lap("input")
        *before, last = split_batch(batch, self._parts)
        for part in before:
            with self._replicas.no_sync():
                self._gradients(part, self._shares / instances)
            self.clock.lap("backward")
        self._gradients(last, self._shares / instances)
        self.clock.lap("backward", until=self._replicas.gradients_ready_at)
        self.clock.lap("sync" if self._replicas.averages else "backward")
        self._steps.step()
        self.clock.lap("optimizer")
        return waited, [len(batch.labels)]

    def _gradients(self, part: Batch, scale: float) -> None:
        """Add the gradients of one part of a batch to the accumulated ones."""
        logits = self._replicas(part.users, part.items, part.context)
        loss = binary_cross_entropy_with_logits(logits, part.labels, reduction="sum")
        scaled = self._steps.scale(loss * scale)
        self.clock.lap("forward")
        scaled.backward()  # type: ignore[no-untyped-call]
        self.loss += loss.detach()

    @property
    def skipped_steps(self) -> int | None:
        return self._steps.skipped

    def settle(self) -> None:
        """Do nothing: torch leaves no row behind."""

    def ranks(
        self, data: PreparedData, first: int, last: int, candidates: Candidates
    ) -> Iterator[Tensor]:
        return rank_test_rows(self.model, data, first, last, candidates)

    def state(self) -> dict[str, Any]:
        return self._steps.state()

    def load(self, state: dict[str, Any]) -> None:
        self._steps.load(state)


def split_batch(batch: Batch, number: int) -> list[Batch]:
    """Split a batch into `number` parts, the last of which may be empty.

    Their sizes differ by one instance at most.
    """
    if number == 1:
        return [batch]
    split = [torch.tensor_split(each, number) for each in batch]
    return [Batch(*parts) for parts in zip(*split, strict=True)]
