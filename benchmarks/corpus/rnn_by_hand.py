import torch

# a vanilla RNN written out, from a course
T, B, D, H = 150, 8, 10, 20
Wx = (0.1 * torch.randn(D, H)).requires_grad_()
Wh = (0.1 * torch.randn(H, H)).requires_grad_()
b = torch.zeros(H, requires_grad=True)
Wy = (0.1 * torch.randn(H, 1)).requires_grad_()
opt = torch.optim.SGD([Wx, Wh, b, Wy], lr=0.01)


def run(x):
    h = torch.zeros(x.shape[1], H)
    outputs = []
    for t in range(T):
        h = torch.tanh(x[t] @ Wx + h @ Wh + b)
        outputs.append(h @ Wy)
    return torch.stack(outputs)


for step in range(260):
    x = torch.randn(T, B, D)
    y = x.sum(2, keepdim=True).cumsum(0) / 10
    opt.zero_grad()
    mse = ((run(x) - y) ** 2).mean()
    mse.backward()
    opt.step()
