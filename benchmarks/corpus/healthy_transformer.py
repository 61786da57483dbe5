import torch
from torch import nn

torch.manual_seed(0)
V, T, D = 200, 64, 128
emb, head = nn.Embedding(V, D), nn.Linear(D, V)
body = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(D, 4, 512, batch_first=True, dropout=0.0), 3
)
params = [*emb.parameters(), *head.parameters(), *body.parameters()]
opt = torch.optim.AdamW(params, lr=3e-4)
data = torch.randint(0, V, (512, T + 1))
mask = nn.Transformer.generate_square_subsequent_mask(T)
for step in range(130):
    batch = data[torch.randint(0, len(data), (32,))]
    logits = head(body(emb(batch[:, :-1]), mask=mask))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    if step % 20 == 0:
        print(step, loss.item())
