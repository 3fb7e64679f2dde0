"""The ledger: how often each worker was counted, on the path that gradients take (`run.ledger`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from geomx.layout import Slice
from geomx.train.calls.collective_client import CollectiveClient


class Ledger:
    """`slices`: the ledger's; none where the run keeps none. `member`: this worker's place among the run's workers."""

    def __init__(self, client: CollectiveClient, slices: Sequence[Slice], member: int) -> None:
        self._client = client
        self._slices = slices
        self._member = member
        self.values: torch.Tensor | None = None  # for each worker (int64), as the run has counted them
        self.contributions = 0  # of this worker, as it has counted itself

    def count(self, cohort: str, operation: str, together: bytes = b"", awaits: bool = False) -> None:
        """This worker has contributed once more. `operation`, `together`, `awaits`: see `Push`."""
        self.contributions += 1
        for slice_ in self._slices:
            self._client.wait([slice_.index])  # where turns overlap: no slice is in two of them at once
            mine = torch.zeros(slice_.elements, dtype=torch.int64)
            part = slice_.parts[0]
            if part.start <= self._member < part.stop:
                mine[self._member - part.start] = 1
            self._client.contribute(
                slice_.index, "gradient", operation, 1.0, (mine, None), cohort=cohort, together=together,
                awaits=awaits,
            )  # fmt: skip

    @property
    def indices(self) -> list[int]:
        """Its slices, by index."""
        return [slice_.index for slice_ in self._slices]

    def arrived(self, values: torch.Tensor | None) -> None:
        """The run has counted; None: nothing new."""
        if values is not None:
            self.values = values.clone()
