"""A script of a user's of Transformers: a small GPT-2 in float64, sequences of several lengths, schedule, evaluation.

trainer_script.py FOLDER BATCH [--resume]        what one worker does; it leaves FOLDER/final.safetensors
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from geomx.integrations.transformers import attach

VOCABULARY, LONGEST, SAMPLES = 40, 12, 38


def sample(number):
    generator = torch.Generator().manual_seed(number)
    length = 3 + number % (LONGEST - 3)
    tokens = torch.randint(1, VOCABULARY, (LONGEST,), generator=generator)
    labels = torch.where(torch.arange(LONGEST) < length, tokens, -100)
    return {"input_ids": tokens, "labels": labels}


folder, batch, resumes = Path(sys.argv[1]), int(sys.argv[2]), "--resume" in sys.argv
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
set_seed(0)
config = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=LONGEST,
    n_embd=16,
    n_layer=1,
    n_head=2,
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
)
model = GPT2LMHeadModel(config)
arguments = TrainingArguments(
    str(folder / "out"),
    per_device_train_batch_size=batch,
    gradient_accumulation_steps=2,
    num_train_epochs=2 if "--half" not in sys.argv else 1,
    learning_rate=0.01,
    warmup_steps=2,
    lr_scheduler_type="constant_with_warmup",
    max_grad_norm=0.5,
    logging_steps=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=[sample(n) for n in range(SAMPLES)],
    eval_dataset=[sample(n) for n in range(50, 60)],
)
run = attach(trainer)
trainer.train(resume_from_checkpoint=resumes)
metrics = trainer.evaluate()
run.close()
if run.is_first:
    save_model(model, str(folder / "final.safetensors"))
    print(f"steps {trainer.state.global_step} loss {metrics['eval_loss']:.6f}", flush=True)
