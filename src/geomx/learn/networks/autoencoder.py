"""An autoencoder: few numbers that a row can be made of again.

    min  sum_i |x_i - decode(encode(x_i))|^2,     both with one hidden layer

What travels: see `base.py`. Source: Hinton and Salakhutdinov, Science 313 (2006).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from geomx.learn.networks.base import Network
from geomx.learn.over import Floats


@dataclass(eq=False, repr=False)
class Autoencoder(TransformerMixin, Network):  # type: ignore[misc]
    """See the module's text, and `Network`.

    Args:
        codes: How many numbers a row becomes.
        hidden: Units of the hidden layers.
        epochs: As of `Network`, and so are the others.
    """

    codes: int = 8
    _: KW_ONLY
    hidden: int = 64
    epochs: int = 50
    learning_rate: float = 3e-3

    def fit(self, X: Any, y: Any = None, run: Any = None) -> Self:  # noqa: N803
        """Train on the rows of all workers.

        Args:
            X: This worker's rows, of shape (rows, features).
            y: Nothing.
            run: The run, in which every worker makes this call; None: these are all rows.

        Returns:
            Itself, the same on all workers.
        """
        rows = self._tensor(validate_data(self, X, dtype=np.float32))
        features = rows.shape[1]

        def make() -> nn.Module:
            sizes = (features, self.hidden, self.codes), (self.codes, self.hidden, features)
            return nn.Sequential(
                *(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c)) for a, b, c in sizes)
            )

        module = self._made(make)

        def loss(batch: Any) -> torch.Tensor:
            own = rows[torch.from_numpy(batch.rows)]
            found: torch.Tensor = ((module(own) - own) ** 2).sum(1) / features
            return found

        self._descend(run, module, len(rows), loss)
        return self

    def transform(self, X: Any) -> Floats:  # noqa: N803
        """The codes of rows, of shape (rows, codes)."""
        return self._by(0, self._rows(X))

    def inverse_transform(self, X: Any) -> Floats:  # noqa: N803
        """Rows of codes."""
        check_is_fitted(self)
        return self._by(1, np.asarray(X, np.float32))

    def score(self, X: Any, y: Any = None) -> float:  # noqa: N803
        """The share of the rows' variance that is made again."""
        rows = self._rows(X)
        apart = ((rows - self._outputs(rows)) ** 2).sum()
        return float(1.0 - apart / ((rows - rows.mean(0)) ** 2).sum())

    def _rows(self, X: Any) -> Any:  # noqa: N803
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float32, reset=False)

    @torch.no_grad()
    def _by(self, half: int, given: Any) -> Floats:
        found: Floats = self.module_.get_submodule(str(half))(self._tensor(given)).double().cpu().numpy()
        return found
