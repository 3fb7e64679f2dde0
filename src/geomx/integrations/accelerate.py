"""Hugging Face's `Accelerator` in a run: `pip install "geomx[accelerate]"`, and another class.

    accelerator = GeomxAccelerator(gradient_accumulation_steps=2, clip_norm=1.0)
    model, optimizer, train_loader, schedule = accelerator.prepare(model, optimizer, train_loader, schedule)

What it changes:

- The loader that is prepared together with the optimizer gives each worker a share, of equally many batches; what
  evaluates is prepared apart, and read as a whole by each.
- The optimizer is the run's from the first batch on, also behind accumulated batches. `clip_norm` clips the mean
  gradient of all workers, in the place of `clip_grad_norm_`.
- The first worker is the main process: it alone saves, prints and tracks. `load_state` comes before the first batch,
  and needs its folder on every machine; `run.skip_to` goes on amid the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import send_to_device
from torch import nn
from torch.utils.data import DataLoader

import geomx
from geomx.errors import Unsupported
from geomx.integrations.passes import Passes
from geomx.train import LiveRun


class GeomxAccelerator(Accelerator):  # type: ignore[misc]
    """An `Accelerator` of one worker of a run.

    Args:
        *arguments: As of `Accelerator`.
        run: The run; None: it is joined.
        over: "run" if all parties read the same data set, "party" if each party has its own; these need equally many
            batches then.
        clip_norm: The bound that the script gives to `clip_grad_norm_`; None: it does not clip.
        **more: As of `Accelerator`.

    Raises:
        Unsupported: It is one of several processes, or scales gradients (`mixed_precision="fp16"`).
    """

    def __init__(
        self,
        *arguments: Any,
        run: LiveRun | None = None,
        over: Literal["party", "run"] = "run",
        clip_norm: float | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        if self.num_processes > 1:
            raise Unsupported(
                f"an Accelerator of {self.num_processes} processes; start one worker for each GPU, which geomx has "
                "work together, and leave `accelerate launch` out"
            )
        if self.scaler is not None:
            raise Unsupported('mixed_precision="fp16" scales gradients; take mixed_precision="bf16"')
        self.run = geomx.join() if run is None else run
        self._over: Literal["party", "run"] = over
        self._clip_norm = clip_norm
        self._waiting: tuple[nn.Module, torch.optim.Optimizer, AcceleratedOptimizer] | None = None

    def prepare(self, *arguments: Any, **more: Any) -> Any:
        """As of `Accelerator`; with an optimizer, its model and the loader that trains it."""
        models = [each for each in arguments if isinstance(each, nn.Module)]
        optimizers = [each for each in arguments if isinstance(each, torch.optim.Optimizer)]
        if not optimizers:
            return super().prepare(*arguments, **more)
        if len(optimizers) > 1 or len(models) != 1 or self._optimizers:
            raise Unsupported(
                "call prepare(model, optimizer, loader, schedule) once, with all of them; with several models or "
                "optimizers, write the loop yourself and attach each with a name"
            )
        given = list(arguments)
        loaders = [place for place, each in enumerate(given) if isinstance(each, DataLoader)]
        if len(loaders) != 1:
            raise Unsupported(
                f"prepare() with an optimizer and {len(loaders)} DataLoaders: give it the one that trains, whose "
                "batches are shared out among all workers, and prepare the others apart"
            )
        share = self.run.shard(given[loaders[0]], over=self._over, train=True, even=True)
        given[loaders[0]] = Batches(self, share)
        prepared = super().prepare(*given, **more)
        found = next(each for each in prepared if isinstance(each, AcceleratedOptimizer))
        self._waiting = models[0], optimizers[0], found
        return prepared

    def join_run(self) -> None:
        """Have what was prepared join the run, with what was loaded since."""
        if self._waiting is not None:
            (model, optimizer, prepared), self._waiting = self._waiting, None
            _, prepared.optimizer = self.run.attach(
                model, optimizer, clip_norm=self._clip_norm, push_at="step"
            )

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """The norm of this worker's own gradient. The run clips the mean, by `clip_norm`."""
        if (max_norm, norm_type) != (self._clip_norm, 2):
            raise Unsupported(
                f"clip_grad_norm_(..., {max_norm}, norm_type={norm_type}) would clip each worker's own gradient; the "
                f"run clips the mean: GeomxAccelerator(clip_norm={max_norm}), with norm_type=2"
            )
        every = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        return torch.nn.utils.get_total_norm([each.grad for each in every if each.grad is not None])

    @property
    def is_main_process(self) -> bool:
        """Whether this is the run's first worker."""
        return self.run.is_first

    is_local_main_process = is_main_process

    def print(self, *arguments: Any, **more: Any) -> None:
        """Print on the first worker."""
        if self.run.is_first:
            print(*arguments, **more)

    def init_trackers(self, *arguments: Any, **more: Any) -> None:
        """As of `Accelerator`, on the first worker."""
        if self.run.is_first:
            super().init_trackers(*arguments, **more)

    def log(self, values: Mapping[str, Any], *arguments: Any, **more: Any) -> None:
        """Also for the live view and the report."""
        self.run.log(**{key: value for key, value in values.items() if isinstance(value, int | float)})
        if self.run.is_first:
            super().log(values, *arguments, **more)

    def save_state(self, *arguments: Any, **more: Any) -> Any:
        """As of `Accelerator`, on the first worker."""
        return super().save_state(*arguments, **more) if self.run.is_first else None

    def load_state(self, *arguments: Any, **more: Any) -> None:
        """As of `Accelerator`, before the first batch. Raises `Unsupported` behind it."""
        if self._optimizers and self._waiting is None:
            raise Unsupported(
                "load_state() behind the first batch: the run has the weights by then; call it before the loop"
            )
        super().load_state(*arguments, **more)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """As of `Accelerator`, of what evaluates. Raises `Unsupported` for what trains."""
        if isinstance(dataloader, Batches):
            raise Unsupported(
                "the batches of a run are skipped by run.skip_to(epoch, batches, steps), before the first"
            )
        return super().skip_first_batches(dataloader, num_batches)


class Batches(Passes):
    """A worker's share, as an `Accelerator` knows loaders: on the device, and with a word at the last batch."""

    end_of_dataloader, remainder = False, -1

    def __init__(self, accelerator: GeomxAccelerator, share: Any) -> None:
        super().__init__(share)
        self._accelerator = accelerator

    def __iter__(self) -> Iterator[Any]:
        self._accelerator.join_run()
        state = self._accelerator.gradient_state
        state._add_dataloader(self)
        try:
            for batch in super().__iter__():
                self.end_of_dataloader = self.is_last
                yield send_to_device(batch, self._accelerator.device)
        finally:
            self.end_of_dataloader = False
            state._remove_dataloader(self)
