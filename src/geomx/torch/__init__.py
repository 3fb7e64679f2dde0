"""The training loop's side of a run."""

from geomx.torch.run import LiveRun
from geomx.torch.settings import Settings

__all__ = ["LiveRun", "Settings"]
