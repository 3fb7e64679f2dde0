"""Hugging Face's `Trainer` in a run: `pip install "geomx[transformers]"`, and one call more.

    trainer = Trainer(model, arguments, train_dataset=train_set, eval_dataset=test_set)
    geomx.integrations.transformers.attach(trainer)
    trainer.train()

What it changes of this trainer:

- Its training loader gives each worker a share, of equally many batches; the run's seed shuffles.
- Its optimizer is the run's. `max_grad_norm` clips the mean gradient of all workers, and not each worker's own.
- Where it counts tokens (`num_items_in_batch`), a worker weighs by them, so that the loss is a mean over all tokens of
  all workers, accumulated batches included; else by samples.
- The first worker alone writes checkpoints and metrics. A checkpoint that it resumes from must lie on every machine.
- What it logs is the run's to show, too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import TrainerState

import geomx
from geomx.errors import Unsupported
from geomx.integrations.passes import Passes
from geomx.train import LiveRun


def attach(trainer: Trainer, run: LiveRun | None = None, over: Literal["party", "run"] = "run") -> LiveRun:
    """Have a trainer train with all other workers. Call it before `trainer.train()`.

    Args:
        trainer: The trainer, of one process: not of a job of its own (`torchrun`, DeepSpeed, FSDP).
        run: The run; None: it is joined.
        over: "run" if all parties read the same data set, "party" if each party has its own; these need equally many
            batches then.

    Returns:
        The run, for `run.log` and the like.

    Raises:
        Unsupported: The trainer is one of several processes, or has several GPUs.
    """
    arguments = trainer.args
    if arguments.world_size > 1 or arguments.n_gpu > 1:
        raise Unsupported(
            f"a Trainer of {arguments.world_size} processes and {arguments.n_gpu} GPUs; start one worker for each GPU, "
            "which geomx has work together, and leave torchrun and DataParallel out"
        )
    run = geomx.join() if run is None else run
    _Attached(trainer, run, over)
    return run


class _Attached(TrainerCallback):  # type: ignore[misc]
    """See the module's text."""

    def __init__(self, trainer: Trainer, run: LiveRun, over: Literal["party", "run"]) -> None:
        self._trainer, self._run, self._over = trainer, run, over
        self._loader, self._create = trainer.get_train_dataloader, trainer.create_optimizer
        self._step, self._resume = trainer.training_step, trainer._load_optimizer_and_scheduler
        self._optimizer: torch.optim.Optimizer | None = None
        self._passes: Passes | None = None
        self._clip_norm = trainer.args.max_grad_norm or None
        trainer.args.max_grad_norm = 0.0
        trainer.args.ignore_data_skip = True  # the run does it
        trainer.get_train_dataloader = self.loader
        trainer.create_optimizer = self.optimizer
        trainer.training_step = self.training_step
        trainer._load_optimizer_and_scheduler = self.resume
        trainer.is_world_process_zero = lambda: run.is_first
        if not run.is_first:
            kind = type(trainer.args)
            trainer.args.__class__ = type(kind.__name__, (kind,), {"should_save": False, "should_log": False})
            trainer._save_rng_state = trainer._load_best_model = lambda *_: None
        trainer.add_callback(self)

    def loader(self) -> Any:
        """The worker's share of the trainer's own."""
        accelerator = self._trainer.accelerator
        prepare, accelerator.prepare = accelerator.prepare, lambda loader: loader
        try:
            loader = self._loader()
        finally:
            accelerator.prepare = prepare
        self._passes = Passes(self._run.shard(loader, over=self._over, train=True, even=True))
        return self._passes

    def optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The run's, made of the trainer's own, once."""
        if self._optimizer is None:
            made = self._create(model)
            _, self._optimizer = self._run.attach(
                self._trainer.model, made, clip_norm=self._clip_norm, push_at="step"
            )
        self._trainer.optimizer = self._optimizer
        return self._optimizer

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """The trainer's own; this worker weighs as many tokens as its loss is a mean of."""
        if num_items_in_batch is not None:
            self._run.weight(float(num_items_in_batch))
        loss: torch.Tensor = self._step(model, inputs, num_items_in_batch)
        return loss

    def resume(self, checkpoint: str | None) -> None:
        """The optimizer and the schedule from a checkpoint, and the data from where that was."""
        self._resume(checkpoint)
        if checkpoint is not None:
            assert self._passes is not None  # a trainer makes its loader first
            told = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
            steps, of_step = told.global_step, self._trainer.args.gradient_accumulation_steps
            a_pass = max(1, math.ceil(len(self._passes) / of_step))
            self._run.skip_to(steps // a_pass, (steps % a_pass) * of_step, steps)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """What it logs goes to the live view and the report."""
        plain = {key: value for key, value in (logs or {}).items() if isinstance(value, int | float)}
        if plain:
            self._run.log(**plain)
