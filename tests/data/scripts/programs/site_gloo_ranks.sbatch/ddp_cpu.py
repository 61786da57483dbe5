import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()
rank = int(os.environ["SLURM_PROCID"])
dist.init_process_group("gloo", rank=rank, world_size=int(os.environ["SLURM_NTASKS"]))
data = TensorDataset(torch.randn(1000, 8), torch.randn(1000, 1))
loader = DataLoader(data, batch_size=50, shuffle=True, num_workers=args.workers)
