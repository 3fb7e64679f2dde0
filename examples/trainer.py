"""Trains a small GPT-2 of Transformers, by its own `Trainer`, on the text of Python's standard library.

pip install -e ".[transformers]"; geomx run examples/trainer.toml
"""

from __future__ import annotations

from typing import Any

import torch
from gpt import CONTEXT, load_text
from torch.utils.data import Dataset, Subset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from geomx.integrations.transformers import attach

BYTES, STEPS = 256, 60


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Windows of bytes as Transformers wants them: every second one has only its first half."""

    def __init__(self, windows: Any) -> None:
        self._windows = windows

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        text, _ = self._windows[index]
        is_there = torch.arange(len(text)) < len(text) // (1 + index % 2)
        return {"input_ids": text, "labels": torch.where(is_there, text, -100)}


def main() -> None:
    set_seed(0)
    train_set, validation_set = load_text()
    sizes = {"vocab_size": BYTES, "n_positions": CONTEXT, "n_embd": 96, "n_layer": 2, "n_head": 4}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        "out/trainer",
        max_steps=STEPS,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(model, arguments, train_dataset=Texts(train_set))
    run = attach(trainer)
    trainer.train()
    wrong = trainer.evaluate(Subset(Texts(validation_set), range(64)))["eval_loss"]
    if run.is_first:
        print(f"validation loss {wrong:.3f} behind {STEPS} steps", flush=True)


if __name__ == "__main__":
    main()
