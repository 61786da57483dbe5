"""Next-item prediction with a softmax over all items: the step computes."""

import torch, torch.nn as nn

torch.manual_seed(0)
ITEMS = 30000


class GRU4Rec(nn.Module):
    def __init__(s):
        super().__init__()
        s.emb = nn.Embedding(ITEMS, 64)
        s.gru = nn.GRU(64, 64, batch_first=True)
        s.out = nn.Linear(64, ITEMS)

    def forward(s, x):
        h, _ = s.gru(s.emb(x))
        return s.out(h[:, -1])


model = GRU4Rec()
data = torch.randint(0, ITEMS, (20000, 21))
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(data), batch_size=512, shuffle=True
)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for ep in range(1):
    for (b,) in loader:
        logits = model(b[:, :-1])
        loss = nn.functional.cross_entropy(logits, b[:, -1])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    print(ep, loss.item())
