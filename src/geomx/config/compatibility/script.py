"""What only the training script knows, and a description does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

Keeps = Literal["nothing", "momentum", "squares", "unknown"]


@dataclass(frozen=True, slots=True)
class Script:
    """A training script, as far as it decides how a run goes. The defaults are of one that nobody has seen yet.

    `optimizer`: its class. `keeps`: what it keeps of gradients from step to step (`squares`: Adam and its like).
    `momentum`: a mean of gradients is among that. `elementwise`: the global servers can run it. `clips`: it gives
    `clip_norm`. `steps`: how many each worker will take; None where nobody has said.
    """

    optimizer: str = "the optimizer"
    keeps: Keeps = "unknown"
    momentum: bool = False
    elementwise: bool = True
    clips: bool = False
    steps: int | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any], steps: int | None) -> Script:
        """From what a worker told as it attached."""
        own = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in told.items() if key in own} | {"steps": steps})

    def told(self) -> dict[str, Any]:
        """What a worker tells as it attaches, which cannot know how many steps it will take."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "steps"}
