"""What RankNet and ListNet share: a network that gives each row a score, trained on whole queries."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from geomx.learn.batches import Batch
from geomx.learn.networks.base import Network
from geomx.learn.over import Floats


@dataclass(eq=False, repr=False)
class RankingNetwork(Network):
    """A query's rows lie with one worker; batches are of queries.

    Args:
        hidden: Units of the hidden layer.
        epochs: As of `Network`, and so are the others; a batch has so many queries.
    """

    hidden: int = 16
    _: KW_ONLY
    epochs: int = 50
    batch_size: int = 4
    learning_rate: float = 1e-2

    def fit(self, X: Any, y: Any, groups: Any, run: Any = None) -> Self:  # noqa: N803
        """Train on the queries of all workers.

        Args:
            X: This worker's rows, of shape (rows, features).
            y: How relevant each is.
            groups: The query of each row.
            run: The run, in which every worker makes this call; None: these are all rows.

        Returns:
            Itself, the same on all workers.

        Raises:
            ValueError: `groups` has another length than `y`.
        """
        x, targets = validate_data(self, X, y, dtype=np.float32, y_numeric=True)
        if len(np.asarray(groups)) != len(targets):
            raise ValueError(f"{len(np.asarray(groups))} groups for {len(targets)} rows")
        names, query = np.unique(np.asarray(groups), return_inverse=True)
        rows, relevance = self._tensor(x), self._tensor(targets)
        order = torch.from_numpy(np.argsort(query, kind="stable"))
        queries = order.split(np.bincount(query).tolist())  # type: ignore[no-untyped-call]
        features = x.shape[1]
        module = self._made(
            lambda: nn.Sequential(
                nn.Linear(features, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1, bias=False)
            )
        )

        def loss(batch: Batch) -> torch.Tensor:
            own = [queries[place] for place in batch.rows]
            if not own:
                return module(rows[:0])[:, 0]  # type: ignore[no-any-return]
            scores = module(rows[torch.cat(own)])[:, 0].split([len(each) for each in own])
            return torch.stack([
                self._loss(some, relevance[each]) for some, each in zip(scores, own, strict=True)
            ])  # fmt: skip

        self._descend(run, module, len(names), loss)
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """A score for each row: of one query, the higher comes first."""
        check_is_fitted(self)
        return self._outputs(validate_data(self, X, dtype=np.float32, reset=False))[:, 0]

    def _loss(self, scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
        """Of one query."""
        raise NotImplementedError
