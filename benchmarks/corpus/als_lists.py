import numpy as np

rng = np.random.default_rng(1)
U, I, K = 4000, 3000, 32
data = [rng.choice(I, rng.integers(5, 40), replace=False) for _ in range(U)]
by_item = [[] for _ in range(I)]
for u, items in enumerate(data):
    for i in items:
        by_item[i].append(u)
X, Y = rng.normal(size=(U, K)) * 0.1, rng.normal(size=(I, K)) * 0.1


def half(out, Y, lists, alpha=10.0, reg=0.1):
    YtY = Y.T @ Y + reg * np.eye(Y.shape[1])
    for u, items in enumerate(lists):
        if len(items) == 0:
            continue
        Yu = Y[items]
        weights = np.full(len(items), alpha)
        A = YtY + Yu.T @ (Yu * weights[:, None])
        b = (Yu * (1 + weights)[:, None]).sum(0)
        out[u] = np.linalg.solve(A, b)


for it in range(60):
    half(X, Y, data)
    half(Y, X, by_item)
    print(it, float(np.abs(X).mean()))
