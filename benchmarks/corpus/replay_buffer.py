import random
from collections import deque

import torch
from torch import nn

buffer = deque(maxlen=50_000)
for _ in range(50_000):
    buffer.append(([random.random() for _ in range(8)], random.randrange(4), random.random()))

q = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
target = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(q.parameters())


def replay(n):
    batch = random.sample(list(buffer), n)
    states = torch.tensor([s for s, _, _ in batch])
    actions = torch.tensor([a for _, a, _ in batch])
    rewards = torch.tensor([r for _, _, r in batch])
    return states, actions, rewards


for step in range(4500):
    states, actions, rewards = replay(128)
    with torch.no_grad():
        goal = rewards + 0.9 * target(states).max(1).values
    loss = (q(states).gather(1, actions[:, None]).squeeze(1) - goal).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 1000 == 0:
        target.load_state_dict(q.state_dict())
        print(step, loss.item())
