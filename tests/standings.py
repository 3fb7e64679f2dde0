"""Where cohorts stand, in short."""

from __future__ import annotations

from collections.abc import Mapping

from geomx.wire.roster_messages import Standing


def stand(
    turns: Mapping[str, int], steps: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, Standing]:
    """By cohort, its last turn and, where it is known, its last step and that one's turn."""
    return {cohort: Standing(turn, *(steps or {}).get(cohort, ())) for cohort, turn in turns.items()}
