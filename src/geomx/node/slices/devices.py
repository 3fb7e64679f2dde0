"""Where the values lie that a worker is given: in the host's memory, or on a GPU that is still to compute them.

A training loop only queues work for its GPU. To read a number of it the loop would wait until the GPU has come so far,
and then the GPU would wait for the loop. So a loop hands over what is `Queued`. A job waits for it, in a thread for
such waits (`Job.waits`), and looks at it and encodes it on a stream `beside` the loop's; what travels goes through
page-locked memory (`on_host`), and so do the answers (`placed`). Everything else is as where there is no GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

HOST = torch.device("cpu")
Check = Callable[[torch.Tensor], None]


def queues(device: torch.device) -> bool:
    """Whether what is computed there is only queued when a call returns."""
    return device.type == "cuda"


def beside(device: torch.device) -> AbstractContextManager[object]:
    """Within it, work for a device is queued on a stream that is not the training loop's."""
    return torch.cuda.stream(_stream(device)) if device.type == "cuda" else nullcontext()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it in page-locked memory, when it is there. What computes it has been waited for."""
    if tensor.device.type != "cuda":
        return tensor
    copy, stream = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True), _stream(tensor.device)
    with torch.cuda.stream(stream):
        copy.copy_(tensor, non_blocking=True)
        stream.synchronize()
    return copy


def placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor in the host's memory, or a copy of it on the device, when it is there."""
    if device.type != "cuda":
        return tensor
    stream = _stream(device)
    with torch.cuda.stream(stream):
        copy = tensor.pin_memory().to(device, non_blocking=True)
        stream.synchronize()
    return copy


def used_here(tensor: torch.Tensor) -> None:
    """The stream of this thread uses what was `placed`: nothing takes its memory before that has come so far."""
    if tensor.device.type == "cuda":
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """Values that a device is still to compute. `check` raises NotFinite where they may not leave.

    Nobody else has them, and whoever takes them waits until the work on them is done; then their memory is free.
    """

    values: torch.Tensor
    check: Check
    event: torch.cuda.Event | None

    @classmethod
    def behind(cls, values: torch.Tensor, check: Check) -> Queued:
        """Behind what this thread has queued so far."""
        return cls(values, check, _event(values.device))

    def taken(self) -> torch.Tensor:
        """The values, once they are there. Raises NotFinite."""
        if self.event is not None:
            self.event.synchronize()
        with beside(self.values.device):
            self.check(self.values)
        return self.values


class Later:
    """Numbers that a device is still to compute; whoever asks for them waits for that, and for nothing behind it."""

    def __init__(self, numbers: torch.Tensor) -> None:
        is_cuda = numbers.device.type == "cuda"
        self._copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=is_cuda)
        self._copy.copy_(numbers, non_blocking=True)
        self._event = _event(numbers.device)

    def numbers(self) -> list[float]:
        """As they are."""
        if self._event is not None:
            self._event.synchronize()
        return list(self._copy.numpy().tolist())


def _event(device: torch.device) -> torch.cuda.Event | None:
    """Behind what this thread has queued for a device; None where nothing queues."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for each device; whoever is first beside another thread may have one of its own, and waits for that."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
