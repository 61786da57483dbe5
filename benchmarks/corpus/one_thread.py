import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(3)], nn.Linear(1024, 1))
opt = torch.optim.Adam(model.parameters())
x, y = torch.randn(4096, 1024), torch.randn(4096, 1)
for step in range(200):
    ix = torch.randint(0, 4096, (512,))
    loss = nn.functional.mse_loss(model(x[ix]), y[ix])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
