"""The workers of a party as a group of `torch.distributed`, with collective calls that wait as everything here does.

Whoever waits in one hears through its port when a node of the run is lost, and is told for whom it waits when it takes
long. The group is one of geomx's own: its calls do not mix with those of DDP or FSDP, whatever the order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from geomx.errors import GeomxError, RunFailed, Unsupported, WaitTimeout
from geomx.node.port import Port
from geomx.train.party.leaving import Leaving
from geomx.train.settings import Collective

NEVER = timedelta(days=30)  # who is lost is found out by heartbeats, and whoever is slow is waited for
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Done:
    """What a port is given when a collective call has ended: whoever waits looks again."""


class PartyGroup:
    """`name`: this worker; `rank` of `ranks` in its party. `device`: where what is added up lies, a GPU or the CPU."""

    def __init__(
        self, port: Port, name: str, rank: int, ranks: int, settings: Collective, device: torch.device
    ) -> None:
        """Join the party's process group, or make it. Raises `Unsupported`, `WaitTimeout`."""
        self.rank, self.ranks = rank, ranks
        self.device = device if device.type == "cuda" else torch.device("cpu")
        self._port = port
        self._name = name
        self._settings = settings
        self._made = not dist.is_initialized()
        if self._made:
            self._initialize()
        if (dist.get_rank(), dist.get_world_size()) != (rank, ranks):
            raise Unsupported(
                f"{name} is worker {rank} of {ranks} in its party, and rank {dist.get_rank()} of "
                f"{dist.get_world_size()} in its process group: a party is one torchrun job, with the same ranks"
            )
        self._host = dist.new_group(backend="gloo", timeout=NEVER)
        on_gpu = self.device.type == "cuda"
        self._near = dist.new_group(backend="nccl", timeout=NEVER) if on_gpu else self._host

    def _initialize(self) -> None:
        patience = timedelta(seconds=self._settings.start_s)
        backend = "gloo" if self.device.type == "cpu" else "nccl"
        try:
            dist.init_process_group(backend, timeout=patience)
        except (RuntimeError, ValueError) as error:  # ValueError: without torchrun's variables
            raise WaitTimeout(
                f"{self._name} cannot connect to the other workers of its party ({error}); start the party as one job, "
                "with torchrun or `geomx run`, or raise limits.start_s"
            ) from error

    def gather(self, tensor: torch.Tensor, to: int) -> Callable[[], list[torch.Tensor]]:
        """Begin to collect everybody's `tensor` (of one shape, on `device` or the CPU) at one rank.

        Returns what waits for it, and gives the tensors in the order of ranks; elsewhere none.
        """
        group = self._host if tensor.is_cpu else self._near
        found = [torch.empty_like(tensor) for _ in range(self.ranks)] if self.rank == to else []
        work = self._tried(lambda: dist.gather(tensor, found or None, dst=to, group=group, async_op=True))
        return lambda: self._finish(work, found)

    def gather_all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Everybody's `tensor` (of one shape, on the CPU), in the order of ranks."""
        found = [torch.empty_like(tensor) for _ in range(self.ranks)]
        work = self._tried(lambda: dist.all_gather(found, tensor, group=self._host, async_op=True))
        return self._finish(work, found)

    def leave(self, step: int) -> str:
        """Why this worker cannot leave its loop behind `step` together with the others; "" where it can."""
        from torch._C._distributed_c10d import PrefixStore  # noqa: PLC0415 (not in every build of PyTorch)
        from torch.distributed.distributed_c10d import _get_default_store  # noqa: PLC0415

        if not self.is_open:
            return "its process group was destroyed before run.close()"
        party = self._name.rpartition("/")[0]
        names = [f"{party}/{rank}" for rank in range(self.ranks)]
        store = PrefixStore(f"geomx leaves {self._host.group_name}", _get_default_store())
        try:
            return Leaving(store, names, self.rank, self._port, self._settings.loss_s).behind(step)
        except RuntimeError as error:  # the store has gone with the process that had it
            return f"it cannot reach the others of its party any more ({error})"

    @property
    def is_open(self) -> bool:
        """Whether collective calls can still be made: a script may destroy its process group."""
        return dist.is_initialized()

    def close(self) -> None:
        """Leave the process group, if it was made here."""
        if self._made and self.is_open:
            dist.destroy_process_group()

    def _finish(self, work: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
        done = threading.Event()

        def tell(_: object) -> None:
            done.set()
            self._port.give(Done())

        work.get_future().add_done_callback(tell)
        self._port.wait(done.is_set, lambda: "the other workers of the party", on_run=False)
        self._tried(work.wait)
        return found

    def _tried(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except RuntimeError as error:
            raise blamed(self._port, self._name, error, self._settings.loss_s) from error


def is_of_collective(error: BaseException) -> bool:
    """Whether an error is that of a collective call, made here or by DDP or FSDP: gloo's is a plain RuntimeError."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("gloo" in text or "nccl" in text)


def blamed(port: Port, name: str, error: BaseException, within_s: float) -> GeomxError:
    """What ended the run where a collective call failed: most likely a worker that is lost, of which the run hears."""
    return port.outcome(within_s) or RunFailed(name, f"a collective call inside its party failed: {error}")
