"""The upper ends of a server's downward edges."""

from __future__ import annotations

from dataclasses import dataclass

from geomx.channels.contract import BlockClasses
from geomx.codecs.contract import Codec
from geomx.node.slices.update_stream import UpdateEncoder
from geomx.wire.session import Patience


@dataclass(frozen=True, slots=True)
class ChildEdges:
    """Those of one server. `children`: each child's leaves, in the order of the run.

    `classes`: how their channel sends blocks; None: everything goes over connections. `later_s`: how much later than
    the lowest servers this one gives up on a turn, since those below know better for whom it waits.
    """

    children: dict[str, tuple[str, ...]]
    patience: Patience
    up: Codec
    down: UpdateEncoder
    classes: BlockClasses | None = None
    later_s: float = 0.0
