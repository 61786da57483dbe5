import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
net = DistributedDataParallel(
    nn.Sequential(
        nn.Conv2d(3, 48, 3),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48 * 28 * 28, 10),
    )
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(110):
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print(loss.item())
