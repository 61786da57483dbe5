import lightning as L
from model import Net, Data

L.Trainer(accelerator="gpu", devices=1, max_epochs=3).fit(Net(), Data())
