"""Whether datagrams pass to each peer, as both drivers note it."""

from __future__ import annotations

from geomx.node.contract import Note


class PathNews:
    """What is noted of whether datagrams pass to each peer: once, and again only when it has changed."""

    def __init__(self) -> None:
        self._passes: dict[str, bool] = {}

    def about(self, peer: str, passes: bool, why: str) -> Note | None:
        """What to note now; None: nothing that is not known. People are told where TCP carries all, and no longer."""
        before = self._passes.get(peer)
        if passes == before:
            return None
        self._passes[peer] = passes
        level = "debug" if before is None and passes else "info" if passes else "warning"
        return Note("datagrams", {"peer": peer, "passes": passes, "why": why}, level)
