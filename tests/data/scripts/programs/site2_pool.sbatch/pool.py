import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np

CORES = int(os.environ.get("SLURM_CPUS_PER_TASK", os.cpu_count() or 1))


def work(seed):
    return np.random.default_rng(seed).normal(size=10**6).sum()


if __name__ == "__main__":
    with ProcessPoolExecutor(max_workers=CORES) as pool:
        print(sum(pool.map(work, range(100))))
