"""Random ratings in the format that the program reads, of Frappe's size."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd

ROWS, USERS, ITEMS = 60_000, 654, 1127

folder = Path("data/processed/FRAPPE/NCF/frappe_ncf")
folder.mkdir(parents=True, exist_ok=True)
draw = np.random.default_rng(0)
table = pd.DataFrame({0: draw.integers(0, USERS, ROWS), 1: draw.integers(0, ITEMS, ROWS), 2: 1})
for name in ("train", "test"):
    table.to_csv(folder / f"frappe_ncf.{name}.rating", sep="\t", header=False, index=False)
seen = {user: set(items.tolist()) for user, items in table.groupby(0)[1]}
(folder / "frappe_ncf.positive_samples.pkl").write_bytes(pickle.dumps(seen))
