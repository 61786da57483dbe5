"""PureSVD by subspace iteration, all of it in BLAS."""
import numpy as np

rng = np.random.default_rng(0)
R = (rng.random((2500, 2500)) < 0.02).astype(np.float64)
Q = np.linalg.qr(rng.normal(size=(2500, 200)))[0]
for it in range(60):
    Q, _ = np.linalg.qr(R.T @ (R @ Q))
S = R @ Q @ Q.T
print(float(np.abs(R - S).mean()))
