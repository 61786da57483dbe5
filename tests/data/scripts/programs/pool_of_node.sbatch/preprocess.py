import multiprocessing as mp
import os

import numpy as np


def work(path):
    return np.load(path).mean()


if __name__ == "__main__":
    files = sorted(os.listdir("chunks"))
    with mp.Pool(mp.cpu_count()) as pool:
        print(sum(pool.map(work, files)))
