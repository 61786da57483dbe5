import numpy as np

rng = np.random.default_rng(0)
n_users, n_items, k = 1000, 1500, 16
ratings = [(rng.integers(n_users), rng.integers(n_items), rng.random()) for _ in range(60_000)]
P = rng.normal(0, 0.1, (n_users, k))
Q = rng.normal(0, 0.1, (n_items, k))


def epoch(lr=0.01, reg=0.02):
    error = 0.0
    for u, i, r in ratings:
        e = r - P[u] @ Q[i]
        P[u] += lr * (e * Q[i] - reg * P[u])
        Q[i] += lr * (e * P[u] - reg * Q[i])
        error += e * e
    return error / len(ratings)


for n in range(25):
    print(n, epoch())
