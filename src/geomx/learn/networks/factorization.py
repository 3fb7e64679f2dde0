"""Matrix factorisation: ratings as products of what users and items are like.

    min  sum_{(u, i) rated} (r_ui - m - b_u - c_i - p_u q_i)^2 + lambda (|p_u|^2 + |q_i|^2)

A user's ratings lie with one worker, and so do p_u and b_u: only items' factors travel, as the weights of a network
(see `base.py`). Their gradients tell which items a worker's users have rated in a batch, and sums over these users of
how far off they are. Source: Koren, Bell and Volinsky, IEEE Computer 42 (2009).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted
from torch import nn

from geomx.learn.agreement import begin
from geomx.learn.batches import Batch
from geomx.learn.networks.base import Network, attached
from geomx.learn.over import Floats, Over, uniform


@dataclass(eq=False, repr=False)
class MatrixFactorization(RegressorMixin, Network):  # type: ignore[misc]
    """See the module's text, and `Network`.

    Args:
        items: How many items there are, numbered from 0.
        factors: Numbers that each is like.
        shrinks: lambda.
        epochs: As of `Network`, and so are the others.

    Attributes:
        users_: This worker's users, in order.
        mean_: m, of all ratings.
    """

    items: int
    factors: int = 8
    _: KW_ONLY
    shrinks: float = 0.02
    epochs: int = 30
    batch_size: int = 1024
    learning_rate: float = 1e-2

    def fit(self, X: Any, y: Any, run: Any = None) -> Self:  # noqa: N803
        """Train on the ratings of all workers' users.

        Args:
            X: Of each rating the user and the item, integers of shape (ratings, 2). No user is another worker's, too.
            y: The ratings.
            run: The run, in which every worker makes this call; None: these are all ratings.

        Returns:
            Itself: items are the same on all workers, users are this one's.

        Raises:
            ValueError: An item that there is not.
        """
        user, item = self._checked(X)
        self.users_, place = np.unique(user, return_inverse=True)
        users = self._tensor(self._begins(self.users_, 0)).requires_grad_()
        of_users = torch.optim.Adam([users], lr=self.learning_rate)
        module = nn.Embedding(self.items, self.factors + 1).to(self.device)
        with torch.no_grad():
            module.weight.copy_(self._tensor(self._begins(np.arange(self.items), 1)))
        ratings, who, what = (
            self._tensor(each, dtype)
            for each, dtype in ((y, torch.float32), (place, torch.int64), (item, torch.int64))
        )

        def loss(batch: Batch) -> torch.Tensor:
            at = torch.from_numpy(batch.rows)
            p, q = users[who[at]], module(what[at])
            off = ratings[at] - self.mean_ - _together(p, q)
            found: torch.Tensor = off**2 + self.shrinks * ((p[:, 1:] ** 2).sum(1) + (q[:, 1:] ** 2).sum(1))
            return found

        def stepped(batch: Batch) -> None:
            """What items do at the servers, users do here."""
            if users.grad is not None:
                users.grad *= len(batch.rows) / batch.size
                of_users.step()
                of_users.zero_grad()

        self.module_, optimizer = attached(run, module, self._optimizer(module))
        over = Over(run)
        begin(over, self)
        total, count = over.total(np.array([float(ratings.sum())]), np.array([len(ratings)]))
        self.mean_ = float(total[0]) / float(count[0])
        self._steps(run, optimizer, len(ratings), loss, stepped)
        self._users = users.detach()
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """Ratings of this worker's users; of a user without any, as if it were like none."""
        check_is_fitted(self)
        user, item = self._checked(X)
        place = np.searchsorted(self.users_, user)
        place[place == len(self.users_)] = 0
        is_known = self._tensor(self.users_[place] == user)[:, None]
        with torch.no_grad():
            p, q = (
                self._users[self._tensor(place, torch.int64)],
                self.module_(self._tensor(item, torch.int64)),
            )
            found: Floats = (self.mean_ + _together(p * is_known, q)).double().cpu().numpy()
        return found

    def _checked(self, X: Any) -> tuple[Any, Any]:  # noqa: N803
        pairs = check_array(X, dtype=np.int64)
        if pairs.shape[1] != 2 or pairs[:, 1].min() < 0 or pairs[:, 1].max() >= self.items:
            raise ValueError(
                f"X of shape {pairs.shape}: (ratings, 2), users and items, these from 0 to {self.items - 1}"
            )
        return pairs[:, 0], pairs[:, 1]

    def _begins(self, numbers: Any, kind: int) -> Floats:
        """What users or items begin with, by their numbers: 0, and small random factors."""
        columns = [uniform(numbers, self.random_state, 2 * column + kind) for column in range(self.factors)]
        found: Floats = np.stack([np.zeros(len(numbers)), *(0.2 * each - 0.1 for each in columns)], axis=1)
        return found


def _together(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return p[:, 0] + q[:, 0] + (p[:, 1:] * q[:, 1:]).sum(1)
