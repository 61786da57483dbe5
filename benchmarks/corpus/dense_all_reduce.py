import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(rank)
model = DDP(nn.EmbeddingBag(150_000, 32))
head = DDP(nn.Linear(32, 1))
opt = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for step in range(120):
    ids = torch.randint(0, 150_000, (256, 10))
    loss = (head(model(ids)).squeeze(1) - 1).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
if rank == 0:
    print("loss", loss.item())
dist.destroy_process_group()
