"""Adapts a small GPT-2 of Transformers to text in capitals, by LoRA adapters of PEFT: only these travel.

pip install -e ".[trainers]"; geomx run examples/lora.toml
"""

from __future__ import annotations

from typing import Any

import torch
from gpt import CONTEXT, load_text
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Subset
from transformers import GPT2Config, GPT2LMHeadModel

import geomx

BASE_STEPS, EPOCHS, BATCH = 150, 3, 16
CAPITAL = torch.tensor(list(bytes(range(256)).upper()))


def pretrain(model: GPT2LMHeadModel, texts: Any) -> None:
    """What was done with the model before: it knows text as it is."""
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _, (text, _) in zip(range(BASE_STEPS), DataLoader(texts, BATCH, shuffle=True), strict=False):
        optimizer.zero_grad()
        model(input_ids=text, labels=text).loss.backward()
        optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    train_set, validation_set = load_text()
    sizes = {"vocab_size": 256, "n_positions": CONTEXT, "n_embd": 96, "n_layer": 2, "n_head": 4}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    base, run = GPT2LMHeadModel(config), geomx.join()
    if run.is_first:  # whose frozen weights go to all others, once
        pretrain(base, train_set)
    adapters = LoraConfig(r=8, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
    model = get_peft_model(base, adapters).to(torch.bfloat16)
    model, optimizer = run.attach(model, torch.optim.AdamW(model.parameters(), 1e-2), clip_norm=1.0)
    batches = run.shard(DataLoader(Subset(train_set, range(1280)), BATCH, shuffle=True), over="run")
    held_out = CAPITAL[torch.stack([validation_set[place][0] for place in range(64)])]

    for epoch in range(run.epoch, EPOCHS + 1):
        if epoch:
            for text, _ in batches:
                optimizer.zero_grad()
                model(input_ids=CAPITAL[text], labels=CAPITAL[text]).loss.backward()
                optimizer.step()
        with torch.no_grad():
            loss = float(model(input_ids=held_out, labels=held_out).loss)
        if run.is_first:
            print(f"{epoch} epochs   loss of text in capitals {loss:.3f}", flush=True)
    run.close()


if __name__ == "__main__":
    main()
