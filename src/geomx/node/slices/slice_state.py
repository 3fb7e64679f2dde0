"""What a checkpoint keeps of one slice, as one payload: weights, optimizer state, and what edges hold back.

The bytes are the weights (where there are any), then each *plane*, every one with the slice's dtype and elements. Whose
a plane is stands before a slash; planes without one are the optimizer's:

    worker/up.NAME    what the worker's own encoder holds back of its pushes (never travels)
    worker/anchor     the weights to which it applies deltas, where the model has them in half precision (likewise)
    @SERVER/up.NAME   the same of a server above it;  @SERVER/down.NAME: of its encoder of updates
    @SERVER/anchor    the weights to which that server applies deltas, where those of the worker differ
    @SERVER/down.anchor  those that its children apply deltas to, where the worker's differ
    root/weights      the exact weights, where receivers hold an anchor, or each party others
    root/anchor       that anchor, where it is known
    root/down.NAME    what the root's encoder of updates holds back

NAME: see `geomx.codecs.error_feedback.Lossy.memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from geomx.layout import Slice
from geomx.node.slices.devices import on_host
from geomx.node.slices.slice_jobs import SliceJobs
from geomx.optim.contract import SliceState
from geomx.wire.messages import State

Scalars = tuple[tuple[str, tuple[float, ...]], ...]
Planes = dict[str, torch.Tensor]
WEIGHTS = "root/weights"


def planes_of(server: str) -> str:
    """How the names of a server's planes begin."""
    return f"@{server}/"


class Described(Protocol):
    """A message that says which planes its payload holds."""

    @property
    def planes(self) -> tuple[str, ...]: ...

    @property
    def scalars(self) -> Scalars: ...


def pack_state(
    weights: torch.Tensor | None, state: SliceState | None
) -> tuple[Any, tuple[str, ...], Scalars]:
    """The payload (None where there is nothing), the names of its planes, and the scalars."""
    planes = {} if state is None else state.planes
    scalars: Scalars = () if state is None else tuple(state.scalars.items())
    tensors = [t.reshape(-1) for t in ([] if weights is None else [weights])] + [
        t.reshape(-1) for t in planes.values()
    ]
    if not tensors:
        return None, (), scalars
    flat = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return flat.contiguous().view(torch.uint8), tuple(planes), scalars


def unpack_weights(slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
    """The weights at the head of a payload (flat, the slice's dtype)."""
    return payload[: slice_.size_bytes].view(getattr(torch, slice_.dtype))


def unpack_state(slice_: Slice, described: Described, payload: torch.Tensor | None) -> SliceState:
    """The planes at the tail of a payload, and the scalars."""
    size = slice_.size_bytes
    total = 0 if payload is None else payload.numel()
    start = total - size * len(described.planes)
    planes = {
        name: payload[start + place * size : start + (place + 1) * size].view(getattr(torch, slice_.dtype))
        for place, name in enumerate(described.planes)
        if payload is not None
    }
    return SliceState(planes, dict(described.scalars))


def copied(planes: Mapping[str, torch.Tensor]) -> Planes:
    """What will not change while it is on its way."""
    return {name: on_host(plane) if plane.is_cuda else plane.clone() for name, plane in planes.items()}


def answer_state(
    jobs: SliceJobs,
    slice_: Slice,
    token: int,
    make: Callable[[], SliceState],
    reply: Callable[[State, Any], None],
) -> None:
    """Answer a `Fetch` with what `make` finds, within a job behind those that change the slice."""

    def done(packed: tuple[Any, tuple[str, ...], Scalars]) -> None:
        payload, planes, scalars = packed
        reply(State(token, slice_.index, planes, scalars, 0 if payload is None else payload.nbytes), payload)

    jobs.run(slice_.index, lambda: pack_state(None, make()), done, 0)


def optimizers(planes: Mapping[str, torch.Tensor]) -> Planes:
    """Those of the optimizer."""
    return {name: plane for name, plane in planes.items() if "/" not in name}


def within(start: str, planes: Mapping[str, torch.Tensor]) -> Planes:
    """Those whose names begin so, under the rest of their names."""
    return {name.removeprefix(start): plane for name, plane in planes.items() if name.startswith(start)}


def without(start: str, planes: Mapping[str, torch.Tensor]) -> Planes:
    """All the others."""
    return {name: plane for name, plane in planes.items() if not name.startswith(start)}


def under(start: str, planes: Mapping[str, torch.Tensor]) -> Planes:
    """The inverse of `within`."""
    return {f"{start}{name}": plane for name, plane in planes.items()}
