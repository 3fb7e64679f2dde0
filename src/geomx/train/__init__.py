"""The training loop's side of a run."""

from geomx.train.run import LiveRun
from geomx.train.settings import Settings

__all__ = ["LiveRun", "Settings"]
