import numpy as np

A = np.random.randn(1800, 1800)
Q = A
for k in range(25):
    Q, R = np.linalg.qr(A @ Q)
    print(k, abs(np.diag(R)).max())
