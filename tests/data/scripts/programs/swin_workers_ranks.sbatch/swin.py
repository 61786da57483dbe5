import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from data import Images

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
data = Images("/data/imagenet")
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=64, sampler=sampler, num_workers=8, pin_memory=True)
for epoch in range(10):
    sampler.set_epoch(epoch)
