"""Images by a convolutional network: two layers of 3 x 3 filters, each halved by its largest values, and a linear one.

What travels: see `base.py`. Source: LeCun et al., Proc. IEEE 86 (1998).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import nn

from geomx.learn.networks.classifier import NetworkClassifier


@dataclass(eq=False, repr=False)
class CNNClassifier(NetworkClassifier):
    """See the module's text, and `NetworkClassifier`.

    Args:
        shape: Of an image: channels, height, width; rows have so many features.
        filters: Of the first layer; the second has twice as many.
        epochs: As of `Network`, and so are the others.
    """

    shape: tuple[int, int, int] = (1, 8, 8)
    _: KW_ONLY
    filters: int = 16
    learning_rate: float = 3e-3

    def _module(self, _: int, outputs: int) -> nn.Module:
        channels, height, width = self.shape
        return nn.Sequential(
            nn.Conv2d(channels, self.filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(self.filters, 2 * self.filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(2 * self.filters * (height // 4) * (width // 4), outputs),
        )  # fmt: skip
