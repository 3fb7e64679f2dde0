"""Where and how a worker trains: its way to the run, and what the run says of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geomx.train.calls.collective_client import CollectiveClient
from geomx.train.data.loss import Loss
from geomx.train.data.progress import Progress
from geomx.train.data.samples import Samples
from geomx.train.settings import Settings
from geomx.train.steps.timeline import Timeline


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """What `LiveRun` hands to `attach`, and `attach` to the steps. `members`: the run's workers, in order."""

    client: CollectiveClient
    members: Sequence[str]
    party_members: Sequence[str]
    samples: Samples
    loss: Loss
    progress: Progress
    settings: Settings
    timeline: Timeline
