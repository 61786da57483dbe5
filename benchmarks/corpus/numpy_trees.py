import numpy as np

rng = np.random.default_rng(0)
X = rng.normal(size=(20_000, 30))
y = (X[:, 0] * X[:, 1] + rng.normal(size=20_000) > 0).astype(int)


def best_split(column, target):
    order = np.argsort(column)
    sorted_target = target[order]
    left = np.cumsum(sorted_target)
    n = np.arange(1, len(target) + 1)
    p = left / n
    gini = p * (1 - p)
    return gini.min(), column[order[gini.argmin()]]


def grow(X, y, depth):
    if depth == 0 or len(y) < 20:
        return y.mean()
    splits = [best_split(X[:, j], y) for j in range(X.shape[1])]
    j = int(np.argmin([s[0] for s in splits]))
    mask = X[:, j] < np.median(X[:, j])
    return j, grow(X[mask], y[mask], depth - 1), grow(X[~mask], y[~mask], depth - 1)


forest = []
for t in range(35):
    sample = rng.integers(0, len(y), len(y))
    forest.append(grow(X[sample], y[sample], 7))
print(len(forest), "trees")
