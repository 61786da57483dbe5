import torch

torch.manual_seed(0)
a = torch.randn(1100, 1100) / 33
b = torch.randn(1100, 1100) / 33
total = 0.0
for k in range(160):
    a = torch.tanh(a @ b)
    total += a.norm().item()
print(total)
