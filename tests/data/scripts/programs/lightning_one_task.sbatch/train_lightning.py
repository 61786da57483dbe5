from pytorch_lightning.demos.boring_classes import BoringModel, BoringDataModule
from pytorch_lightning import Trainer


def main():
    model = BoringModel()
    datamodule = BoringDataModule()
    trainer = Trainer(max_epochs=80, accelerator="gpu", devices=2)
    trainer.fit(model, datamodule)


if __name__ == "__main__":
    main()
