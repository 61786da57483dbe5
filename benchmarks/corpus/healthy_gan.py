import torch
from torch import nn

G = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 784))
D = nn.Sequential(nn.Linear(784, 1024), nn.LeakyReLU(), nn.Linear(1024, 512), nn.LeakyReLU(), nn.Linear(512, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
real_images = torch.rand(10_000, 784)
ones, zeros = torch.ones(512, 1), torch.zeros(512, 1)
for step in range(140):
    real = real_images[torch.randint(0, 10_000, (512,))]
    fake = G(torch.randn(512, 64))
    opt_d.zero_grad()
    loss_d = bce(D(real), ones) + bce(D(fake.detach()), zeros)
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    loss_g = bce(D(fake), ones)
    loss_g.backward()
    opt_g.step()
    if step % 50 == 0:
        print(step, loss_d.item(), loss_g.item())
