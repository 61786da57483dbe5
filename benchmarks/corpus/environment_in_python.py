"""REINFORCE on a Python environment."""

import math, random, torch
from torch import nn


class Pole:
    def reset(self):
        self.s = [random.uniform(-0.05, 0.05) for _ in range(4)]
        self.t = 0
        return self.s

    def step(self, a):
        x, xd, th, thd = self.s
        for _ in range(8):
            f = 10.0 if a else -10.0
            c, s = math.cos(th), math.sin(th)
            tmp = (f + 0.05 * thd**2 * s) / 1.1
            tha = (9.8 * s - c * tmp) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
            xa = tmp - 0.05 * tha * c / 1.1
            x += 0.0025 * xd
            xd += 0.0025 * xa
            th += 0.0025 * thd
            thd += 0.0025 * tha
        self.s = [x, xd, th, thd]
        self.t += 1
        return self.s, 1.0, abs(x) > 2.4 or abs(th) > 0.21 or self.t >= 200


pol = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
opt = torch.optim.Adam(pol.parameters(), 1e-2)
env = Pole()
steps = 0
while steps < 45000:
    s, done, lp, rs = env.reset(), False, [], []
    while not done:
        d = torch.distributions.Categorical(logits=pol(torch.tensor(s)))
        a = d.sample()
        lp.append(d.log_prob(a))
        s, r, done = env.step(a.item())
        rs.append(r)
        steps += 1
    R, G = 0, []
    for r in reversed(rs):
        R = r + 0.99 * R
        G.insert(0, R)
    G = torch.tensor(G)
    G = (G - G.mean()) / (G.std() + 1e-6)
    loss = -(torch.stack(lp) * G).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
