"""Where a run's optimizer steps, as far as its description and `clip_norm` decide it."""

from __future__ import annotations

from typing import Literal

from geomx.sync.contract import GradientStep, LocalStep, Policy

Place = Literal["auto", "server", "workers"]


def place_of(place: Place, policy: Policy, *, clips: bool, lossless_down: bool, needs_server: bool) -> Place:
    """Where the optimizer is to run; "auto": on the global servers, if they have its rule.

    With `clip_norm` a server must not apply a slice before it has the norm of all. Means may go down before, and are
    clipped where they arrive: the same numbers, and the two directions overlap. Through codecs that lose something,
    weights come down better than means do.

    Args:
        place: as the description says.
        policy: the run's sync policy.
        clips: the script gives `clip_norm`.
        lossless_down: updates lose nothing on their way.
        needs_server: something else of the description needs the optimizer there.
    """
    if policy.plans is LocalStep:
        return "workers"
    together = policy.sync_group == "run" and policy.plans is GradientStep
    if place == "auto" and clips and together and lossless_down and not needs_server:
        return "workers"
    return place
