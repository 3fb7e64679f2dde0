"""Which blocks must arrive."""

from __future__ import annotations

import math

import pytest
import torch

from geomx.channels.block_classes import Alike, Dgt
from geomx.channels.contract import EdgeSettings, classes_of
from geomx.channels.datagram import Datagram
from geomx.channels.tcp import Tcp
from geomx.codecs.dense import Dense
from geomx.errors import LossUnknown
from geomx.layout import Layout, Tensor

SLICE = Layout((Tensor("w", (4000,), "float32"),)).slices[0]
BLOCKS = Dense().cut(SLICE, torch.zeros(16000, dtype=torch.uint8), 400)


@pytest.mark.parametrize(
    ("relative_loss", "expected"),
    [
        (1.0, 0.8), (0.5, 0.4), (0.25, 0.2), (0.001, 0.2), (1.2, 0.96), (100.0, 1.0),
        (math.nan, 0.8), (math.inf, 0.8), (0.0, 0.8), (-1.0, 0.8),
    ],
)  # fmt: skip
def test_the_reliable_fraction_follows_the_relative_loss_alone(relative_loss: float, expected: float) -> None:
    """Whatever came before: so a run that goes on from a checkpoint goes on with the same."""
    seasoned, fresh = Dgt(k=0.8, k_least=0.2), Dgt(k=0.8, k_least=0.2)
    assert seasoned.k(0.7) == pytest.approx(0.56)
    assert seasoned.k(relative_loss) == fresh.k(relative_loss) == pytest.approx(expected)
    levels = fresh.levels(SLICE, 1, BLOCKS, lambda: torch.arange(4000.0), relative_loss)
    assert levels.count(0) == math.ceil(fresh.k(relative_loss) * len(BLOCKS))


def test_without_a_loss_it_cannot_adapt() -> None:
    with pytest.raises(LossUnknown, match=r"run\.loss"):
        Dgt().k(None)
    assert Dgt(k=0.6, adaptive=False).k(None) == 0.6


def test_a_channel_says_how_it_sends_blocks() -> None:
    classes = Alike(deadline=1.0)
    assert classes_of(Datagram(EdgeSettings(), classes)) is classes
    assert classes_of(Tcp()) is None
