"""What a training loop is told by the run's description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from geomx.codecs.contract import Room, room_of
from geomx.config.known_costs import Setting
from geomx.layout import PACK_BELOW, SLICES_WANTED, Slice
from geomx.sync.contract import Policy
from geomx.sync.fsa import FSA

WeightPolicy = Literal["samples", "equal", "dataset_size"]
OptimizerPlaceName = Literal["auto", "server", "workers"]
Overlap = Literal["none", "forward"]
PushAt = Literal["backward", "step"]
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
class Settings:
    """Defaults are those of a run's description; `attach` may override `push_at` and `overlap`.

    `rule`: the global servers' own, as `module:Class`. `dataset_size`: samples in this party's data set.
    `slice_elements`: 0 cuts the model into about so many `slices`. `size_bounds`: from which sizes on the run's codecs
    take a tensor as large, rising. `codec_momentum`: the codec that has momentum, if
    one has. `collective`: None where the party's local server adds. `after_step`: is called behind each step with the
    seconds that its computation took, from its first batch, or from the step before where `run.shard` gave it none;
    None where that is not known. `room`: for which of a slice's numbers there is room in what contributions travel as.
    `rejoin_s`: how long a lost worker is awaited. `policy_name`: as the description has it, without parameters.
    `lossless_down`: updates lose nothing on their way. `setting`: whose price in accuracy is known; `strict`: none
    is paid.
    """

    weight: WeightPolicy = "samples"
    dataset_size: int | None = None
    place: OptimizerPlaceName = "auto"
    rule: str = ""
    overlap: Overlap = "none"
    push_at: PushAt = "backward"
    slice_elements: int = 0
    slices: int = SLICES_WANTED
    pack_below: int = PACK_BELOW
    size_bounds: tuple[int, ...] = ()
    codec_momentum: str = ""
    collective: Collective | None = None
    after_step: Callable[[float | None], None] | None = None
    rejoin_s: float = 0.0
    seed: int = 0
    ledger: bool = False
    buffers: Buffers = "auto"
    policy: Policy = field(default_factory=FSA)
    policy_name: str = "fsa"
    lossless_down: bool = True
    setting: Setting | None = None
    strict: bool = False
    on_nonfinite: OnNonfinite = "stop"
    room: Callable[[Slice], Room] = room_of
