"""Implicit-feedback ALS (Hu, Koren, Volinsky), one user at a time."""
import numpy as np

rng = np.random.default_rng(7)
n_users, n_items, f, alpha, lam = 6000, 2500, 24, 40.0, 0.1
history = [np.unique(rng.integers(0, n_items, rng.integers(5, 40))) for _ in range(n_users)]
listeners = [[] for _ in range(n_items)]
for u, items in enumerate(history):
    for i in items:
        listeners[i].append(u)
X = rng.normal(0, 0.01, (n_users, f))
Y = rng.normal(0, 0.01, (n_items, f))


def solve_side(target, other, seen):
    gram = other.T @ other + lam * np.eye(f)
    for row, index in enumerate(seen):
        if len(index) == 0:
            continue
        V = other[index]
        A = gram + V.T @ (V * alpha)
        b = V.sum(axis=0) * (1 + alpha)
        target[row] = np.linalg.solve(A, b)


for it in range(60):
    solve_side(X, Y, history)
    solve_side(Y, X, listeners)
    print("iteration", it, float(np.abs(X).mean()))
