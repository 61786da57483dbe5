"""Random characters instead of Shakespeare's, which would be downloaded."""

import pickle
from pathlib import Path

import numpy as np

folder = Path("data/shakespeare_char")
draw = np.random.default_rng(0)
for name, length in (("train", 1_000_000), ("val", 100_000)):
    draw.integers(0, 65, length).astype(np.uint16).tofile(folder / f"{name}.bin")
letters = {str(number): number for number in range(65)}
meta = {
    "vocab_size": 65,
    "stoi": letters,
    "itos": {number: text for text, number in letters.items()},
}
(folder / "meta.pkl").write_bytes(pickle.dumps(meta))
