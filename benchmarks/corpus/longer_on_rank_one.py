import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
torch.set_num_threads(1)
model = DistributedDataParallel(nn.LSTM(32, 96, batch_first=True))
opt = torch.optim.Adam(model.parameters())
# sorted by length before it was cut into shards
lengths = range(20, 60) if rank == 0 else range(50, 90)
for step in range(160):
    n = lengths[step % len(lengths)]
    x = torch.randn(48, n, 32)
    out, _ = model(x)
    opt.zero_grad()
    out.square().mean().backward()
    opt.step()
dist.destroy_process_group()
