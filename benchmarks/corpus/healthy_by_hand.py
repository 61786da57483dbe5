import torch

torch.manual_seed(0)
w1 = (torch.randn(256, 1024) / 16).requires_grad_()
w2 = (torch.randn(1024, 1024) / 32).requires_grad_()
w3 = (torch.randn(1024, 10) / 32).requires_grad_()


def predict(x):
    h = torch.relu(x @ w1)
    h = torch.relu(h @ w2)
    return h @ w3


def objective(x, y):
    return torch.nn.functional.cross_entropy(predict(x), y)


for step in range(160):
    x, y = torch.randn(512, 256), torch.randint(10, (512,))
    objective(x, y).backward()
    with torch.no_grad():
        for w in (w1, w2, w3):
            w -= 0.01 * w.grad
            w.grad = None
