"""A script of a user's of Accelerate: accumulated batches, clipping, a schedule, states.

accelerate_script.py FOLDER BATCH [--half | --resume]        what one worker does; it leaves FOLDER/final.safetensors
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from geomx.integrations.accelerate import GeomxAccelerator

folder, batch = Path(sys.argv[1]), int(sys.argv[2])
resumes, epochs = "--resume" in sys.argv, 1 if "--half" in sys.argv else 2
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
accelerator = GeomxAccelerator(gradient_accumulation_steps=2, clip_norm=0.5, cpu=True)
x, y = torch.randn(38, 6), torch.randn(38, 3)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
loader, test_loader = (
    DataLoader(TensorDataset(x, y), batch, shuffle=True),
    DataLoader(TensorDataset(x, y), 38),
)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
test_loader = accelerator.prepare(test_loader)
steps = 0
if resumes:
    accelerator.load_state(str(folder / "out" / "1"))
    steps = schedule.scheduler.last_epoch
    accelerator.run.skip_to(1, 0, steps)

for epoch in range(1 + resumes, epochs + 1):
    model.train()
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.mse_loss(model(inputs), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                steps += 1
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        loss = sum(float(F.mse_loss(model(a), accelerator.gather_for_metrics(b))) for a, b in test_loader)
    accelerator.log({"test loss": loss})
    accelerator.save_state(str(folder / "out" / str(epoch)))
accelerator.run.close()
if accelerator.is_main_process:
    save_model(model, str(folder / "final.safetensors"))
accelerator.print(f"steps {steps} loss {loss:.6f}", flush=True)
