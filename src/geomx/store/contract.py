"""What a store can do. Names are paths of words with `/` between; contents are bytes, and whole or not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from geomx.errors import GeomxError

Bytes = bytes | bytearray | memoryview


class StoreError(GeomxError):
    """What a store refuses, or that it cannot be reached; says which, and what to do."""


class Store(Protocol):
    """Every method blocks, and raises `StoreError`. What one has changed outlives a power cut."""

    def put(self, name: str, content: Sequence[Bytes]) -> None:
        """Put a content, piece behind piece, in place of what is there."""

    def create(self, name: str, content: Sequence[Bytes]) -> bool:
        """Put a content where there is none; False where there is one. Of several who do it at once, one succeeds."""

    def get(self, name: str) -> bytes | None:
        """The content; None where there is none."""

    def list(self, start: str) -> list[str]:
        """The names that begin so, in order."""

    def delete(self, names: Sequence[str]) -> None:
        """Remove these, where they are there."""

    def sweep(self, start: str) -> None:
        """Remove what others began to write under names that begin so, and died over; whoever still writes it fails."""
