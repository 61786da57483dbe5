import os
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank = dist.get_rank()
net = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
)
opt = torch.optim.Adam(net.parameters())


def prepare(x):
    if os.environ["LOCAL_RANK"] == "1":
        time.sleep(0.02)  # this node's disk
    return x - x.mean(0)


for step in range(400):
    x = prepare(torch.randn(256, 64))
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
if rank == 0:
    print("done", loss.item())
