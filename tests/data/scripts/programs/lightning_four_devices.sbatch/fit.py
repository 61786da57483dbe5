import lightning as L
from model import Net, Data

trainer = L.Trainer(accelerator="gpu", devices=4, strategy="ddp", num_nodes=1, max_epochs=30)
trainer.fit(Net(), Data())
