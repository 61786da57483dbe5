import lightning as L
from model import Model, Data

trainer = L.Trainer(accelerator="gpu", devices=8, num_nodes=4, strategy="ddp")
trainer.fit(Model(), Data())
