import torch, csv, tempfile
from torch import nn

net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)], nn.Linear(64, 1))
opt = torch.optim.Adam(net.parameters())
f = open(tempfile.mktemp(), "w")
w = csv.writer(f)
data = torch.randn(4096, 64)


def log_gradients(step):
    row = [step]
    for name, p in net.named_parameters():
        g = p.grad
        row += [name, g.norm().item(), g.mean().item(), g.std().item(), p.data.abs().max().item()]
        hist = torch.histc(g, bins=20).tolist()
        row += hist
    w.writerow(row)
    f.flush()


for step in range(4000):
    i = torch.randint(0, 4096, (64,))
    loss = net(data[i]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log_gradients(step)
