"""A script of a user's of Lightning: a module in float64 with BatchNorm in evaluation mode, a schedule, callbacks.

lightning_script.py FOLDER BATCH [--half | --resume]      what one worker does; it leaves FOLDER/final.safetensors
"""

import sys
from pathlib import Path

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

from geomx.integrations.lightning import GeomxStrategy

folder, batch = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ).double()

    def training_step(self, batch, _):
        x, y = batch
        return F.mse_loss(self.net(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("wrong", F.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


x = torch.randn(60, 6, dtype=torch.float64)
data = TensorDataset(x, x.sum(1, keepdim=True).sin())
strategy = GeomxStrategy()
trainer = lightning.Trainer(
    strategy=strategy,
    max_epochs=2 if "--half" in sys.argv else 4,
    gradient_clip_val=0.5,
    callbacks=[
        ModelCheckpoint(folder / "out", "{epoch}", save_top_k=-1),
        EarlyStopping("wrong", patience=3),
    ],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
module = Module()
resumed = folder / "out" / "epoch=1.ckpt" if "--resume" in sys.argv else None
trainer.fit(module, DataLoader(data, batch, shuffle=True), DataLoader(data, 30), ckpt_path=resumed)
strategy.run.close()
if strategy.run.is_first:
    save_file(module.net.state_dict(), folder / "final.safetensors")
    print(f"steps {trainer.global_step} wrong {trainer.callback_metrics['wrong']:.9f}", flush=True)
