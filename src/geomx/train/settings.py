"""What a training loop is told by the run's description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from geomx.codecs.contract import Room, room_of
from geomx.config.compatibility.choices import Choices
from geomx.layout import PACK_BELOW, SLICES_WANTED, Slice

WeightPolicy = Literal["samples", "equal", "dataset_size"]
OnNonfinite = Literal["stop", "skip"]
Buffers = Literal["auto", "own", "average"]


@dataclass(frozen=True, slots=True)
class Collective:
    """The party's workers reduce among themselves.

    `start_s`: how long they wait for each other at first. `loss_s`: within so many seconds the run knows of a worker
    that is lost. `codec_up`: what travels to their local server.
    """

    start_s: float
    loss_s: float
    codec_up: str = "dense"


@dataclass(frozen=True, slots=True)
class Settings(Choices):
    """A description's choices, of which `attach` may override `push_at` and `overlap`, and the rest of what it says.

    `dataset_size`: samples in this party's data set.
    `slice_elements`: 0 cuts the model into about so many `slices`. `size_bounds`: from which sizes on the run's codecs
    take a tensor as large, rising. `collective`: None where the party's local server adds. `after_step`: is called
    behind each step with the seconds that its computation took, from its first batch, or from the step before where
    `run.shard` gave it none; None where that is not known. `room`: for which of a slice's numbers there is room in what
    contributions travel as. `has_quorum`: turns may close without some. `has_overlay`: others add up, too.
    `calls`: there are collective calls beside the model.
    """

    weight: WeightPolicy = "samples"
    dataset_size: int | None = None
    slice_elements: int = 0
    slices: int = SLICES_WANTED
    pack_below: int = PACK_BELOW
    size_bounds: tuple[int, ...] = ()
    collective: Collective | None = None
    after_step: Callable[[float | None], None] | None = None
    seed: int = 0
    ledger: bool = False
    buffers: Buffers = "auto"
    on_nonfinite: OnNonfinite = "stop"
    room: Callable[[Slice], Room] = room_of
    has_quorum: bool = False
    has_overlay: bool = False
    calls: bool = False
