"""A GCN of PyTorch Geometric over many small graphs of its FakeDataset."""

import torch
from torch_geometric.datasets import FakeDataset
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

graphs = FakeDataset(
    num_graphs=1000, avg_num_nodes=20, avg_degree=4, num_channels=16, num_classes=4
)


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(16, 32), GCNConv(32, 32)
        self.out = torch.nn.Linear(32, 4)

    def forward(self, graph):
        x = self.first(graph.x, graph.edge_index).relu()
        x = self.second(x, graph.edge_index).relu()
        return self.out(global_mean_pool(x, graph.batch))


model = GCN()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(graphs, batch_size=64, shuffle=True)
for epoch in range(100):
    for graph in loader:
        loss = torch.nn.functional.cross_entropy(model(graph), graph.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 20 == 0:
        print(epoch, loss.item())
