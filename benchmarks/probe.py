"""`python -m benchmarks probe`: what the probe costs a program, in microseconds per step.

One training under the probe takes turns of some 20 ms with the probe's functions in place
and with torch's own. The sampler's thread runs through both; its CPU time is in the record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from hpcncf.probe.launch import observed

# Milliseconds of a step, on one thread: the network is deepened until it takes about as long.
STEPS_MS = (0.4, 1.5, 10, 100)
PROGRAM = """
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader
torch.set_num_threads(1)
torch.manual_seed(0)
wanted, turns = float(sys.argv[1]) / 1000, int(sys.argv[2])
loaders = sys.modules["torch.utils.data.dataloader"]
optimizers = sys.modules["torch.optim.optimizer"]
places = [
    (loaders._BaseDataLoaderIter, "__next__"),
    (torch.autograd, "backward"),
    (torch.no_grad, "__enter__"),
    (torch.no_grad, "__exit__"),
]
probes = [getattr(*place) for place in places]
hooks = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
kept = [dict(each) for each in hooks]
assert all(hasattr(each, "__wrapped__") for each in probes), "not under the probe"
assert all(kept), "not under the probe"
def put(on):
    for (holder, name), probe in zip(places, probes):
        setattr(holder, name, probe if on else probe.__wrapped__)
    for hook, each in zip(hooks, kept):
        hook.clear()
        hook.update(each if on else {})
class Batches:
    def __len__(self):
        return 10**9
    def __getitem__(self, i):
        return x
x = torch.randn(16, 64)
batches = iter(DataLoader(Batches(), batch_size=None))
def step():
    loss = model(next(batches)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
inner = [nn.Linear(128, 128), nn.ReLU()]  # repeated: more memory would be noisier, not longer
depth, took = 1, 0
while took < 0.9 * wanted:
    model = nn.Sequential(nn.Linear(64, 128), *inner * depth, nn.Linear(128, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(5):
        step()
    began = time.perf_counter()
    for _ in range(5):
        step()
    took = (time.perf_counter() - began) / 5
    depth += max(1, int(depth * (0.95 * wanted / took - 1)))
steps = max(2, round(0.02 / took))
turns = min(turns, round(25 / (2 * (steps + 1) * took)))
seconds = {False: [], True: []}
for turn in range(2 * turns):
    # On and off, then off and on: a machine that gets slower favours neither.
    on = turn % 4 in (0, 3)
    put(on)
    step()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    seconds[on].append((time.perf_counter() - began) / steps)
put(True)
step()
print(json.dumps([seconds[False], seconds[True]]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks probe", description=__doc__)
    parser.add_argument("--turns", type=int, default=500, help="at most")
    turns = parser.parse_args(arguments).turns
    print("| step | the probe adds | of the step | the sampler, of a core |")
    print("|---|---|---|---|")
    for wanted in STEPS_MS:
        with tempfile.TemporaryDirectory() as name:
            environment = observed(os.environ, Path(name))
            words = [sys.executable, "-c", PROGRAM, str(wanted), str(turns)]
            done = subprocess.run(
                words, env=environment, check=True, capture_output=True, text=True
            )
            without, within = json.loads(done.stdout)
            (record,) = [json.loads(path.read_text()) for path in Path(name).glob("*.json")]
        added = sorted(probed - bare for bare, probed in zip(without, within, strict=True))
        base, quarter = median(without), len(added) // 4
        sampler = record["sampler"][1] / record["elapsed_s"]
        print(
            f"| {base * 1e3:.2f} ms | {median(added) * 1e6:.1f} us ({added[quarter] * 1e6:.1f} to "
            f"{added[-1 - quarter] * 1e6:.1f}) | {median(added) / base:.2%} | {sampler:.2%} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
