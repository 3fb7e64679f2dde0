"""The training loop's side of a run: `run.py` is what `geomx.join()` gives, `attach.py` how a model gets into it, and
`together.py` what it cannot have together with a description.

`steps/` is what happens in `optimizer.step()`, `calls/` what waits for all workers, `model/` and `optimizer/` the
user's objects as slices, `party/` reducing inside a party, `checkpoint/` and `data/` what their names say.
"""

from geomx.train.run import LiveRun
from geomx.train.settings import Settings

__all__ = ["LiveRun", "Settings"]
