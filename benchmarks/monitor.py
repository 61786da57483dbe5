"""The monitor against the kernel's own account, and what it costs the process it watches."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from hpcncf.monitor.cgroup import usable_cpus
from hpcncf.monitor.sampler import Monitor
from hpcncf.records.schema import NodeRecord

AGREEMENT_S = 40.0
AGREED = 0.01
COST_TARGET = 0.01
# The cost is so small that it is measured at ten times the rate, and divided by ten.
FASTER = 10
PAIRS = 20
BLOCK_S = 2.0

BUSY = """
import sys, time
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end: pass
"""
# A child that waits for its own: what the grandchild spent reaches the root through two accounts.
FAMILY = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}, sys.argv[1]])"


@dataclass(frozen=True)
class Agreement:
    """One figure, by us and by the kernel."""

    of: str
    ours: float
    kernel: float

    @property
    def difference(self) -> float:
        return self.ours / self.kernel - 1


def main() -> int:
    if sys.argv[1:] == ["work"]:
        return work()
    agreements = agreement()
    print(f"Over {AGREEMENT_S:.0f} s of threads, children and grandchildren that come and go:\n")
    print("| | monitor | kernel | difference |\n|---|---:|---:|---:|")
    for each in agreements:
        print(f"| {each.of} | {each.ours:.4f} | {each.kernel:.4f} | {each.difference:+.2%} |")
    print(f"\nCost of one sample a second (measured at {FASTER}, {PAIRS} pairs on and off):\n")
    print("| | throughput, median (quartiles) | CPU of the sampling thread |\n|---|---:|---:|")
    for name, step in (("Python loop that holds the GIL", python_step), training_step()):
        print(f"| {name} | {cost(step)} |", flush=True)
    print(f"\nTarget: less than {COST_TARGET:.0%}. Neighbours on the machine widen the quartiles.")
    return 0 if all(abs(each.difference) <= AGREED for each in agreements) else 1


def agreement() -> list[Agreement]:
    """Watch a process tree from outside, by /proc alone while it lives; then ask the kernel."""
    children_before_s = children_s()  # other benchmarks may have had some
    with tempfile.TemporaryDirectory() as folder:
        worker = subprocess.Popen(
            [sys.executable, __file__, "work"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        monitor = Monitor("agreement", 1, pid=worker.pid, node_file=Path(folder) / "node-0.json")
        busy_before_s, begun_s = busy_s(), time.monotonic()
        monitor.start()
        assert worker.stdout is not None
        tree_s = float(worker.stdout.readline())
        time.sleep(1.5)  # it idles now: one more sample sees all it did
        alive_s = sum(monitor.node_record().tree_cpu_s)
        worker.communicate("\n")
        measured = monitor.stop()
        busy_kernel_s, length_s = busy_s() - busy_before_s, time.monotonic() - begun_s
        node = monitor.node_record()
    ended_s = measured.cpu.user_s + measured.cpu.system_s
    share = busy_kernel_s / length_s / len(usable_cpus())
    return [
        Agreement("CPU seconds while it lives, /proc alone", alive_s, tree_s),
        Agreement("CPU seconds at its end", ended_s, children_s() - children_before_s),
        Agreement("busy share of the cores", mean_busy(node), share),
    ]


def work() -> int:
    """Threads, idle phases, children and grandchildren; then this tree's own account, and wait."""
    end = time.monotonic() + AGREEMENT_S
    number = 0
    while time.monotonic() < end:
        number += 1
        program = FAMILY if number % 2 else BUSY
        seconds = str(0.05 + 0.3 * (number % 4))
        children = [subprocess.Popen([sys.executable, "-c", program, seconds]) for _ in range(2)]
        threads = [threading.Thread(target=python_step) for _ in range(3)]
        for thread in threads:
            thread.start()
        for child in children:
            child.wait()
        for thread in threads:
            thread.join()
        time.sleep(0.2 * (number % 3))
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(usage.ru_utime + usage.ru_stime for usage in usages), flush=True)
    sys.stdin.readline()
    return 0


def children_s() -> float:
    """CPU seconds of all children that ended and were waited for."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def busy_s() -> float:
    """Of the usable CPUs since boot, read by psutil: not by the code under test."""
    times = psutil.cpu_times(percpu=True)
    return sum(
        times[cpu].user + times[cpu].nice + times[cpu].system + times[cpu].irq + times[cpu].softirq
        for cpu in usable_cpus()
    )


def mean_busy(node: NodeRecord) -> float:
    seconds = [
        share * length
        for cpu in node.busy
        for share, length in zip(cpu, node.length_s, strict=True)
    ]
    return sum(seconds) / sum(node.length_s) / len(node.cpus)


def python_step() -> None:
    total = 0
    for number in range(200_000):
        total += number * number


def training_step() -> tuple[str, Callable[[], None]]:
    """One optimiser step of NeuMF of Frappe's size on one thread, and its name."""
    import torch

    from hpcncf.job.spec import Model
    from hpcncf.ncf.model import NeuMF

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = NeuMF(654, 1127, 21, Model())
    optimizer = torch.optim.Adam(model.parameters())
    users, items = torch.randint(654, (1280,)), torch.randint(1127, (1280,))
    context, labels = torch.rand(1280, 21), torch.randint(2, (1280,)).float()

    def step() -> None:
        optimizer.zero_grad()
        logits = model(users, items, context)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return "NeuMF training step, one thread", step


def cost(step: Callable[[], None]) -> str:
    """What one sample a second takes, as two cells."""
    rate(step)  # warm caches and clocks
    lost, threads = [], []
    for number in range(PAIRS):
        monitored_first = number % 2 == 0  # drift must not be a cost
        if not monitored_first:
            off = rate(step)
        on, thread_s = monitored_rate(step)
        if monitored_first:
            off = rate(step)
        lost.append((1 - on / off) / FASTER)
        threads.append(thread_s / BLOCK_S / FASTER)
    low, middle, high = statistics.quantiles(lost, n=4)
    return f"{middle:+.2%} ({low:+.2%} to {high:+.2%}) | {statistics.median(threads):.3%}"


def monitored_rate(step: Callable[[], None]) -> tuple[float, float]:
    """Steps per second under a monitor that samples the node too, and its thread's CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "node-0.json"
        monitor = Monitor("cost", 1, node_file=file, interval_s=1 / FASTER)
        monitor.start()
        (thread,) = [each for each in threading.enumerate() if each.name == "hpcncf-monitor"]
        before_s = thread_cpu_s(thread)
        steps_per_s = rate(step)
        spent_s = thread_cpu_s(thread) - before_s
        monitor.stop()
    return steps_per_s, spent_s


def thread_cpu_s(thread: threading.Thread) -> float:
    """To the nanosecond, where /proc/<pid>/stat has ticks."""
    text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
    return int(text.split()[0]) / 1e9


def rate(step: Callable[[], None]) -> float:
    """Steps per second."""
    steps, begun_s = 0, time.perf_counter()
    while time.perf_counter() < begun_s + BLOCK_S:
        step()
        steps += 1
    return steps / (time.perf_counter() - begun_s)


if __name__ == "__main__":
    sys.exit(main())
