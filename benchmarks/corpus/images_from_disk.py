import os
import random
import tempfile

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

root = tempfile.mkdtemp()
rng = np.random.default_rng(0)
for k in range(240):
    Image.fromarray(rng.integers(0, 255, (256, 256, 3), dtype=np.uint8)).save(f"{root}/{k}.png")


class Covers(Dataset):
    def __init__(self, root):
        self.paths = sorted(os.path.join(root, p) for p in os.listdir(root))

    def __len__(self):
        return 4 * len(self.paths)

    def __getitem__(self, k):
        image = Image.open(self.paths[k % len(self.paths)]).convert("RGB").resize((64, 64))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255
        return x, k % 10


model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
model(torch.zeros(1, 3, 64, 64))
opt = torch.optim.Adam(model.parameters())
for epoch in range(1):
    for x, y in DataLoader(Covers(root), batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
