import torch
from torch import nn

torch.manual_seed(0)
rnn = nn.LSTM(64, 256)
out = nn.Linear(256, 64)
opt = torch.optim.Adam([*rnn.parameters(), *out.parameters()])
text = torch.randn(2400, 32, 64)
state = None
losses = []
for k in range(0, 2400, 40):
    y, state = rnn(text[k : k + 40], state)
    state = tuple(s.detach() for s in state)
    loss = (out(y) - text[k : k + 40]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.detach())
print(torch.stack(losses).mean())
