"""Products of matrices by torch's threads, step after step: work that shares out well."""

from __future__ import annotations

import argparse
import os

import torch
from phases_of_program import Phases


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--bind", type=int, help="to this CPU only, once the threads are there")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=10)
    asked = parser.parse_args()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    if asked.bind is not None:
        os.sched_setaffinity(0, {asked.bind})
    phases = Phases("forward", "backward")
    left, right = torch.randn(2, asked.width, asked.width)
    while phases.elapsed_s() < asked.seconds:
        with phases.of("forward"):
            product = left @ right
        with phases.of("backward"):
            left = torch.tanh(product @ right.T)
        phases.step(asked.width)
    phases.say()


if __name__ == "__main__":
    main()
