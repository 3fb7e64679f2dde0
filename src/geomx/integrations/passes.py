"""A share of data for a trainer that counts batches, and so never asks a pass for its end."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

from geomx.train.data.loader import Share


class Passes:
    """A share with what trainers ask of a loader. `finish` ends a pass of which all batches were handed over."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._pass: Iterator[Any] = iter(())
        self._left = 1  # batches of the pass that is under way; never 0 where none is
        self.dataset = getattr(share.batches, "dataset", None)
        self.batch_size = getattr(share.batches, "batch_size", None)
        if isinstance(self.dataset, Sized):
            self.num_examples = len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        self.finish()
        self._pass, is_first = iter(self._share), True
        for batch in self._pass:
            if is_first:
                self._left, is_first = len(self) - self._share.begun_behind, False
            self._left -= 1
            yield batch

    @property
    def is_last(self) -> bool:
        """Whether the batch that was handed over is the last of its pass."""
        return self._left <= 0

    def __len__(self) -> int:
        return len(self._share)

    def finish(self) -> None:
        """End the pass as a loop does that asks for one batch more."""
        if self._left <= 0:
            self._left = 1
            for _ in self._pass:
                pass
