"""How much this worker's contribution counts.

    mean = Σ_i w_i x_i / Σ_i w_i

`samples`: w is what `run.shard` counted since the last turn that pushed, so that a mean over workers equals the mean
over the concatenated batches. `equal`: 1. `dataset_size`: the party's number, divided among its workers.
`run.weight(n)` overrides each of them, for one turn; within `run.accumulate()` its calls add up, as counting does.
"""

from __future__ import annotations

import math

from geomx.errors import ConfigError, Fault, Unsupported, WeightUnknown
from geomx.optim.hyper import as_plain
from geomx.train.settings import Settings


class Samples:
    """Counts samples, and turns them into weights.

    `accumulating`: what is given is of one micro-batch of several.
    """

    def __init__(self, settings: Settings, members: int, party_members: int) -> None:
        self._policy = settings.weight
        self._alone = members == 1
        self.share = 1.0  # the weight of a step where samples do not count
        if settings.weight == "dataset_size":
            if settings.dataset_size is None:
                allowed = "the number of samples in this party's data set"
                raise ConfigError(
                    "the run", [Fault("party.dataset_size", "nothing", allowed, "sync.weight needs it")]
                )
            self.share = settings.dataset_size / party_members
        self._counted = 0
        self._given: float | None = None  # outside of `run.accumulate()`, where the last call counts
        self._accumulated: float | None = None  # within it
        self._latest: float | None = None  # what several steps of a model may have in common
        self._settings, self._sizes = settings, (members, party_members)
        self._models: list[Samples] = []
        self.accumulating = False
        self._total, self._seen = 0.0, 0

    @property
    def total(self) -> float:
        """The sum of all weights so far; of several models, of the first."""
        return self._models[0].total if self._models else self._total

    @total.setter
    def total(self, weight: float) -> None:
        for each in self._models or [self]:
            each._total = weight

    @property
    def seen(self) -> int:
        """The number of samples behind them."""
        return self._models[0].seen if self._models else self._seen

    def of_model(self) -> Samples:
        """What is counted for one of several models, each of which may step once, or several times, with a batch."""
        own = Samples(self._settings, *self._sizes)
        own._latest, own._counted, own._given = math.nan, self._counted, self._given
        self._models.append(own)
        return own

    def count(self, samples: int) -> None:
        """A batch was handed to the training loop."""
        self._counted += samples
        for model in self._models:
            model.count(samples)

    @property
    def given(self) -> float:
        """What `run.weight` has said of the next turn; 0 where it has said nothing."""
        return (self._given or 0.0) + (self._accumulated or 0.0)

    def give(self, weight: float) -> None:
        """The weight of the next turn that pushes; raises `Unsupported` for what is no weight."""
        number = as_plain(weight)
        if not isinstance(number, int | float) or not math.isfinite(number) or number < 0:
            raise Unsupported(f"run.weight({weight!r}): a weight is a finite number, 0 or more")
        for model in self._models:
            model.give(weight)
        if self.accumulating:
            self._accumulated = (self._accumulated or 0.0) + number
        else:
            self._given = float(number)

    def take(self) -> float:
        """The weight of the turn that pushes now; counting starts anew. Raises `WeightUnknown`."""
        weight = self._weight()
        self._seen += self._counted or int(self.given)
        self._counted, self._given, self._accumulated = 0, None, None
        self._total += weight
        self._latest = None if self._latest is None else weight
        return weight

    def _weight(self) -> float:
        if self._given is not None or self._accumulated is not None:
            return self.given
        if self._policy != "samples":
            return self.share
        if self._counted:
            return float(self._counted)
        if self._latest is not None and not math.isnan(self._latest):
            return self._latest
        if self._alone:
            return 1.0
        if not self.seen:
            raise WeightUnknown(
                "no samples were counted for this step: write `for batch in run.shard(loader):` in place of `for batch "
                "in loader:`. In a loop that draws its own batches, call run.weight(n) before backward(), or set "
                'sync.weight = "equal" in the description. Batches drawn under no_grad() or after '
                "model.eval() are an evaluation, and not counted; with run.shard(loader, train=True) they are"
            )
        raise WeightUnknown(
            "no samples were counted for this step, but for those before it: iterate over run.shard(loader), call "
            'run.weight(n) before backward(), or set sync.weight = "equal". Batches drawn under no_grad() or after '
            "model.eval() are an evaluation, and not counted; with run.shard(loader, train=True) they are. A "
            "backward() without a step() belongs in `with run.accumulate():`"
        )
