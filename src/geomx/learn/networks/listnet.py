"""ListNet: of each query, the probabilities of coming first.

    L = - sum_i softmax(y)_i log softmax(s)_i

What travels: see `base.py`. Source: Cao, Qin, Liu, Tsai and Li, ICML 2007.
"""

from __future__ import annotations

import torch

from geomx.learn.networks.ranking import RankingNetwork


class ListNet(RankingNetwork):
    """See the module's text, and `RankingNetwork`."""

    def _loss(self, scores: torch.Tensor, relevance: torch.Tensor) -> torch.Tensor:
        return -(relevance.softmax(0) * scores.log_softmax(0)).sum()
