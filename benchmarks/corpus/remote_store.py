import socket
import struct
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROW = struct.Struct("16f")


def serve(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection):
    while data := connection.recv(4):
        (key,) = struct.unpack("i", data)
        time.sleep(0.003)
        connection.sendall(ROW.pack(*[(key * k) % 7 / 7 for k in range(1, 17)]))


class Store(Dataset):
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))

    def __len__(self):
        return 1500

    def __getitem__(self, key):
        self.socket.sendall(struct.pack("i", key))
        values = torch.tensor(ROW.unpack(self.socket.recv(ROW.size)))
        return values[:-1], values[-1]


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listener,), daemon=True).start()
model = nn.Linear(15, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in DataLoader(Store(listener.getsockname()[1]), batch_size=64, shuffle=True):
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
