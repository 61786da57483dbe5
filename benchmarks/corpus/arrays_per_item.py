import numpy as np, torch, tempfile, pathlib, sys
from torch import nn
from torch.utils.data import DataLoader

root = pathlib.Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
for i in range(4000):
    np.save(root / f"{i}.npy", rng.standard_normal((32, 64)).astype(np.float32))


class Spectrograms(torch.utils.data.Dataset):
    def __init__(self, root):
        self.files = sorted(root.glob("*.npy"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        spec = np.load(self.files[i])
        spec = (spec - spec.mean(axis=1, keepdims=True)) / (spec.std(axis=1, keepdims=True) + 1e-6)
        return torch.from_numpy(spec), i % 5


dl = DataLoader(Spectrograms(root), batch_size=32, shuffle=True)
model = nn.GRU(64, 32, batch_first=True)
head = nn.Linear(32, 5)
opt = torch.optim.AdamW([*model.parameters(), *head.parameters()])
for epoch in range(9):
    tot = 0
    for spec, label in dl:
        out, _ = model(spec)
        loss = nn.functional.cross_entropy(head(out[:, -1]), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        tot += loss.item()
    print(f"epoch {epoch} {tot / len(dl):.3f}")
