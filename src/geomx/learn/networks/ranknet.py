"""RankNet: of each pair of a query, the probability that the order is right.

    L = mean over pairs with y_i > y_j of  log(1 + e^{-(s_i - s_j)})

What travels: see `base.py`; pairs stay at home. Source: Burges et al., ICML 2005.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from geomx.learn.networks.ranking import RankingNetwork


class RankNet(RankingNetwork):
    """See the module's text, and `RankingNetwork`."""

    def _loss(self, scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
        more, less = torch.nonzero(relevance[:, None] > relevance[None, :], as_tuple=True)
        if not len(more):
            return scores.sum() * 0.0
        return F.softplus(scores[less] - scores[more]).mean()
