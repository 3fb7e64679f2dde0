"""Trains the CNN of cnn.py as a module of Lightning.

pip install -e ".[lightning]"; geomx run examples/lightning.toml
"""

from __future__ import annotations

import data
import lightning
import torch
import torch.nn.functional as F
from cnn import build_model
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader

from geomx.integrations.lightning import GeomxStrategy

Batch = tuple[torch.Tensor, torch.Tensor]


class Digits(lightning.LightningModule):
    """The CNN, its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_model()

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: Batch, _: int) -> None:
        images, labels = batch
        self.log("accuracy", (self.model(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 2e-3)


def main() -> None:
    torch.manual_seed(0)
    train_set, test_set = data.load("digits")
    strategy = GeomxStrategy()
    trainer = lightning.Trainer(
        strategy=strategy,
        max_epochs=12,
        gradient_clip_val=1.0,
        callbacks=[EarlyStopping("accuracy", mode="max", patience=3)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(), DataLoader(train_set, 32, shuffle=True), DataLoader(test_set, 359))
    if strategy.run.is_first:
        accuracy = trainer.callback_metrics["accuracy"]
        print(f"test accuracy {accuracy:.2%} behind {trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
