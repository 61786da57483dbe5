"""Text in place of wikitext-2: words of a Zipf distribution, as many as there."""

from pathlib import Path

import numpy as np

folder = Path("data/wikitext-2")
folder.mkdir(parents=True, exist_ok=True)
draw = np.random.default_rng(0)
for name, lines in {"train": 36_000, "valid": 3_700, "test": 4_300}.items():
    words = draw.zipf(1.3, size=(lines, 55)) % 30_000
    text = "\n".join(" ".join(f"w{word}" for word in line) for line in words)
    (folder / f"{name}.txt").write_text(text + "\n")
