import torch
from torch import nn

torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
head = nn.Linear(512, 10)
# only the head is fine-tuned
optimizer = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9)
for step in range(250):
    x, y = torch.randn(256, 256), torch.randint(10, (256,))
    features = backbone(x)
    loss = nn.functional.cross_entropy(head(features), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
