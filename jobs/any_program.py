"""Estimates pi by throwing darts at a square, each rank its share: a program of nobody's field."""

import argparse
import json
import os
import random
import time
from pathlib import Path

PARTS = 10

parser = argparse.ArgumentParser()
parser.add_argument("--throws", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
asked = parser.parse_args()

# Set by hpcncf, and by torchrun; alone, this is the only rank.
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
chance = random.Random(asked.seed * ranks + rank)
share, inside, began = asked.throws // ranks, 0, time.monotonic()

for part in range(1, PARTS + 1):
    inside += sum(chance.random() ** 2 + chance.random() ** 2 < 1 for _ in range(share // PARTS))
    done = part * (share // PARTS)
    # What `hpcncf status` shows meanwhile; the last value of each key becomes a column.
    print(f"hpcncf: epoch={part} epochs={PARTS} pi={4 * inside / max(done, 1)}")

seconds = time.monotonic() - began
print(f"hpcncf: instances_per_s={ranks * share / seconds}")  # of all ranks: what speed means here
if "HPCNCF_OUTPUT" in os.environ and rank == 0:
    (Path(os.environ["HPCNCF_OUTPUT"]) / "metrics.json").write_text(json.dumps({"hands": ranks}))
