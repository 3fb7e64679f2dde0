"""What joiners of a run are sent of a slice of which only rows go down: values that all had, and the rows since.

A slice's values are not copied for each step that changes a few of its rows, but when the rows since are as many bytes
as they are, or `MOST_PATCHES` steps have come: so the copies cost no more than what has been sent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from geomx.codecs.rows import Rows, write
from geomx.layout import Slice

ROWS = Rows()
MOST_PATCHES = 256


class Patched(NamedTuple):
    """Values (as bytes) and the payloads that have changed rows of them since, the oldest first."""

    slice_: Slice
    values: torch.Tensor
    patches: tuple[torch.Tensor, ...]

    def whole(self) -> torch.Tensor:
        """The values now, as bytes of their own."""
        values = self.values.clone()
        flat = values.view(getattr(torch, self.slice_.dtype))
        for payload in self.patches:
            write(self.slice_, flat, ROWS.decode(self.slice_, payload))
        return values


def patched(slice_: Slice, before: Any, payload: torch.Tensor) -> Patched:
    """What `before` is with the rows of another payload."""
    if not isinstance(before, Patched):
        return Patched(slice_, before, (payload,))
    size = sum(patch.nbytes for patch in before.patches)
    if size < slice_.size_bytes and len(before.patches) < MOST_PATCHES:
        return before._replace(patches=(*before.patches, payload))
    return Patched(slice_, before.whole(), (payload,))


def whole(values: Any) -> Any:
    """What a joiner is sent: bytes, or None."""
    return values.whole() if isinstance(values, Patched) else values
