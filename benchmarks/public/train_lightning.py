"""Lightning's demonstration model in its Trainer."""

from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch.utils.data import DataLoader

data = DataLoader(RandomDataset(32, 64_000), batch_size=8)
trainer = Trainer(
    max_epochs=2,
    accelerator="cpu",
    enable_checkpointing=False,
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(BoringModel(), data)
