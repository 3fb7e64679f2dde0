"""The upper ends of a server's downward edges."""

from __future__ import annotations

from dataclasses import dataclass

from geomx.codecs.contract import Codec
from geomx.node.slices.update_stream import UpdateEncoder
from geomx.wire.session import Patience


@dataclass(frozen=True, slots=True)
class ChildEdges:
    """Those of one server. `children`: each child's leaves, in the order of the run.

    `loses`: whether their channel may lose blocks of what children push.
    """

    children: dict[str, tuple[str, ...]]
    patience: Patience
    up: Codec
    down: UpdateEncoder
    loses: bool = False
