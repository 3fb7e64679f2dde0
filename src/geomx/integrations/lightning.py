"""Lightning's `Trainer` in a run: `pip install "geomx[lightning]"`, and a strategy.

    trainer = lightning.Trainer(strategy=GeomxStrategy(), max_epochs=10, gradient_clip_val=1.0)
    trainer.fit(module, train_loader, test_loader)

What it changes:

- The training loader gives each worker a share, of equally many batches; evaluation reads all on each.
- The module's optimizer is the run's. `gradient_clip_val` clips the mean gradient of all workers.
- The first worker alone writes checkpoints and logs. A checkpoint that it resumes from must lie on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.optim import Optimizer
from torch.utils.data import DataLoader

import geomx
from geomx.errors import Unsupported
from geomx.integrations.passes import Passes
from geomx.train import LiveRun


class GeomxStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Trains a module together with all other workers of a run.

    Args:
        run: The run; None: it is joined.
        over: "run" if all parties read the same data set, "party" if each party has its own; these need equally many
            batches then.
        device: Where this worker computes; None: a GPU by its rank, where there is one.
    """

    strategy_name = "geomx"
    optimizers: list[Optimizer]

    def __init__(
        self,
        run: LiveRun | None = None,
        over: Literal["party", "run"] = "run",
        device: torch.device | str | None = None,
    ) -> None:
        self.run = geomx.join() if run is None else run
        if device is None:
            gpus = torch.cuda.device_count()
            device = f"cuda:{self.run.rank % gpus}" if gpus else "cpu"
        super().__init__(device=device)
        self._over: Literal["party", "run"] = over
        self._passes: Passes | None = None

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker writes what one alone writes."""
        return self.run.is_first

    def setup(self, trainer: Trainer) -> None:
        """The module joins the run, where it is to be trained. Raises `Unsupported`."""
        super().setup(trainer)
        if trainer.state.fn != "fit":
            return
        if len(self.optimizers) != 1:
            raise Unsupported(
                f"a module with {len(self.optimizers)} optimizers; with several, write the loop yourself and attach "
                "each model with a name"
            )
        clip_norm, how = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        if clip_norm and str(getattr(how, "value", how) or "norm") != "norm":
            raise Unsupported(
                'gradient_clip_algorithm="value"; the mean gradient is clipped by its norm: use "norm"'
            )
        trainer.gradient_clip_val = None
        _, optimizer = self.run.attach(
            self.lightning_module, self.optimizers[0], clip_norm=clip_norm or None, push_at="step"
        )
        self.optimizers = [optimizer]

    def process_dataloader(self, dataloader: object) -> object:
        """This worker's share of what trains; what evaluates as it is."""
        module = self.lightning_module
        trains = module is not None and module.trainer.training
        if not (trains and isinstance(dataloader, DataLoader)):
            return dataloader
        self._passes = Passes(self.run.shard(dataloader, over=self._over, train=True, even=True))
        return self._passes

    def on_train_end(self) -> None:
        """The last pass ends as those before."""
        if self._passes is not None:
            self._passes.finish()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """For a checkpoint, which the first worker writes."""
        return super().optimizer_state(optimizer) if self.is_global_zero else {}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """The optimizer, and the place in the data: at the beginning of the epoch that comes next."""
        super().load_optimizer_state_dict(checkpoint)
        self.run.skip_to(int(checkpoint["epoch"]) + 1, 0, int(checkpoint["global_step"]))

    def optimizer_step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """One step together with the others; its loss goes to the live view now and then."""
        loss = super().optimizer_step(optimizer, *args, **kwargs)
        trainer = self.lightning_module.trainer
        if isinstance(loss, torch.Tensor) and trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            self.run.log(loss=loss)
        return loss
