"""Hashes user histories into feature vectors, in 'parallel'."""

import random
from concurrent.futures import ThreadPoolExecutor

random.seed(0)
histories = [[random.randrange(100000) for _ in range(60)] for _ in range(60000)]


def featurise(h):
    out = [0] * 64
    for a, b in zip(h, h[1:]):
        x = (a * 31 + b) & 0xFFFFFFFF
        for _ in range(6):
            x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        out[x % 64] += 1
    return out


with ThreadPoolExecutor(max_workers=4) as pool:
    feats = list(pool.map(featurise, histories))
print(len(feats), sum(map(sum, feats)))
