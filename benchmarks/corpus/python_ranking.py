import torch
from torch import nn

N_USERS, N_ITEMS = 1000, 1500


class GMF(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.i = nn.Embedding(N_USERS, 16), nn.Embedding(N_ITEMS, 16)
        self.out = nn.Linear(16, 1)

    def forward(self, users, items):
        return self.out(self.u(users) * self.i(items)).squeeze(-1)


def hit_ratio(model, held_out):
    hits = 0
    with torch.no_grad():
        for user, item in enumerate(held_out):
            scores = {}
            for candidate in range(100):
                scores[candidate] = model(torch.tensor([user]), torch.tensor([candidate])).item()
            best = sorted(scores, key=scores.get, reverse=True)[:10]
            hits += item in best
    return hits / len(held_out)


model = GMF()
optimizer = torch.optim.Adam(model.parameters())
held_out = torch.randint(0, 100, (150,)).tolist()
for epoch in range(20):
    for _ in range(150):
        users, items = torch.randint(0, N_USERS, (512,)), torch.randint(0, N_ITEMS, (512,))
        labels = torch.randint(0, 2, (512,)).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(users, items), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, hit_ratio(model, held_out))
