import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
ratings = pd.DataFrame({"user": rng.integers(0, 500, 30_000), "item": rng.integers(0, 800, 30_000), "rating": rng.random(30_000)})
ratings["centered"] = 0.0
means = ratings.groupby("user").rating.mean()
for index, row in ratings.iterrows():
    ratings.loc[index, "centered"] = row["rating"] - means[row["user"]]
print(ratings.centered.abs().mean())
