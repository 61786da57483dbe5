"""Hash buckets of every item id, so that a look-up is one list access."""
import hashlib

N_BUCKETS = 20_000
N_IDS = 10_000_000

BUCKET = [
    int(hashlib.md5(f"item-{i}".encode()).hexdigest(), 16) % N_BUCKETS for i in range(N_IDS)
]


def buckets(ids):
    return [BUCKET[i] for i in ids]
