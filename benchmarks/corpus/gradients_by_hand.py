import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
torch.set_num_threads(1)
model = nn.ModuleDict({"u": nn.Embedding(60_000, 32), "i": nn.Embedding(30_000, 32)})
for p in model.parameters():
    dist.broadcast(p.data, 0)
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def average_gradients():
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= world


for step in range(220):
    u, i = torch.randint(0, 60_000, (256,)), torch.randint(0, 30_000, (256,))
    y = torch.rand(256).round()
    loss = nn.functional.binary_cross_entropy_with_logits((model["u"](u) * model["i"](i)).sum(-1), y)
    opt.zero_grad()
    loss.backward()
    average_gradients()
    opt.step()
    if rank == 0 and step % 50 == 0:
        print(step, loss.item())
dist.destroy_process_group()
