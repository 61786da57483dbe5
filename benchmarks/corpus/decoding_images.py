"""Images are kept compressed, as with JPEG files."""

import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, n=600, size=224):
        rng = np.random.default_rng(0)
        self.size = size
        self.blobs = [
            zlib.compress(rng.integers(0, 40, (size, size, 3), dtype=np.uint8).tobytes())
            for _ in range(n)
        ]

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, i):
        raw = zlib.decompress(self.blobs[i])
        image = np.frombuffer(raw, dtype=np.uint8).reshape(self.size, self.size, 3)
        crop = image[16:-16:6, 16:-16:6].astype(np.float32) / 255
        flipped = np.ascontiguousarray(np.flip(image, 1)).astype(np.float32)
        return torch.from_numpy(crop.transpose(2, 0, 1).copy()), flipped.mean() > 19.5


net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 15 * 15, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
images = Images()
for epoch in range(8):
    for x, y in DataLoader(images, batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(net(x), y.long())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, float(loss))
